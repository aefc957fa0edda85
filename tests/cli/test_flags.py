"""Commands from operations: each field determines its help, its values and its parsing."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import typer
from typer.testing import CliRunner

from lmkcli.cli.adapter import command
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result
from lmkcli.spec.settings import Flag, Settings

SEEN: list[Any] = []


@dataclass(frozen=True, kw_only=True)
class Oven(Settings):
    """Fields of every type."""

    panel: ClassVar[str] = "Heat"
    degrees: Annotated[int, Flag("How hot.", short="-d", min=0, max=300)] = 180
    mode: Annotated[Literal["fan", "grill"], Flag("Which element.")] = "fan"
    light: Annotated[bool, Flag("Whether the lamp is on.")] = True
    clean: Annotated[bool, Flag("Clean afterwards.")] = False
    trays: Annotated[list[Path] | None, Flag("What goes in; repeat it.", long="--with")] = None
    timer: Annotated[float | None, Flag("Minutes.", shown="none")] = None
    size: Annotated[int, Flag("MemoryBudget.", parse=lambda text: 2 * int(text))] = 14
    serial: str = "x1"  # no flag


@dataclass(frozen=True)
class Bake(Operation[Result], Oven):
    """Bake a dish."""

    verb: ClassVar[str] = "bake"
    unused: ClassVar[tuple[str, ...]] = ("secret",)

    dish: Annotated[str, Flag("What.", argument=True, metavar="DISH")] = field()
    name: Annotated[str, Flag("Who.")] = field(kw_only=True)
    secret: Annotated[str, Flag("Never used.")] = field(default="soy", kw_only=True)
    fat: Annotated[str, Flag("Which; fan alone.", only="fan")] = field(default="oil", kw_only=True)

    def variant(self) -> tuple[str, str]:
        """The element."""
        return self.mode, f"--mode {self.mode}"

    def execute(self, report: Report) -> Result:
        """Store the operation and its record."""
        SEEN.append((self, dict(report.call.record), list(report.call.command)))
        return Result()


def bake(*words: str, code: int = 0, **variables: str) -> Any:
    SEEN.clear()
    app = typer.Typer()
    app.command()(command(Bake))
    done = CliRunner(env=variables).invoke(app, list(words))
    assert done.exit_code == code, done.output
    if code:
        return " ".join(f"{done.output} {done.exception}".replace("│", " ").split())
    return SEEN[0] if SEEN else " ".join(done.output.replace("│", " ").split())


def test_defaults_are_those_of_the_fields() -> None:
    assert bake("pie", "--name", "Ann")[0] == Bake("pie", name="Ann")


def test_every_field_can_be_set() -> None:
    made, record, words = bake(
        *"pie --name Ann -d 200 --no-light --clean --fat butter".split(),
        *"--with a --with b --timer 1.5 --size 4".split(),
    )
    assert made == Bake(
        "pie", name="Ann", degrees=200, light=False, clean=True, fat="butter",
        trays=[Path("a"), Path("b")], timer=1.5, size=8,
    )  # fmt: skip
    assert record == {
        "operation": "bake", "version": 1, "dish": "pie", "name": "Ann", "degrees": 200,
        "mode": "fan", "light": False, "clean": True, "fat": "butter", "trays": ["a", "b"],
        "timer": 1.5, "size": 8,
    }  # fmt: skip
    assert words[:3] == ["lmk", "bake", "pie"]


def test_a_flag_without_effect_is_refused_even_if_it_has_its_default() -> None:
    message = bake("pie", "--name", "Ann", "--mode", "grill", "--fat", "oil", code=1)
    assert re.search("--fat.*--mode grill", message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pie"], "Missing.* '--name'"),
        (["pie", "--name", "A", "-d", "301"], r"'-d' .*\b300\b"),
        (["pie", "--name", "A", "--mode", "steam"], "'steam' .*'fan', 'grill'"),
        (["pie", "--name", "A", "--secret", "x"], "option.* --secret"),
        (["pie", "--name", "A", "--serial", "x"], "option.* --serial"),
        (["pie", "--name", "A", "--no-clean"], "option.* --no-clean"),
        (["pie", "--name", "A", "--timer", "x"], "--timer"),
    ],
)
def test_invalid_values_are_refused(words: list[str], message: str) -> None:
    assert re.search(message, bake(*words, code=2))


def test_variables_set_flags() -> None:
    assert bake("pie", "--name", "Ann", LMK_BAKE_WITH="a", LMK_BAKE_DEGREES="3")[0] == Bake(
        "pie", name="Ann", trays=[Path("a")], degrees=3
    )


def test_help_contains_the_text_of_the_fields() -> None:
    text = bake("--help", COLUMNS="200")
    for words in ("Heat", "How hot.", "180", "--light", "--no-light", "--with", "--config", "none"):
        assert words in text
    assert "--trays" not in text
