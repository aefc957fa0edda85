"""Flags from settings: what a field says is what the command line shows, takes and hands over."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import typer
from typer.testing import CliRunner

from lmkcli.cli import flags
from lmkcli.cli.flags import Given, Subset, with_flags
from lmkcli.settings import Flag


@dataclass(frozen=True)
class Oven:
    """Settings of every kind of field."""

    panel: ClassVar[str] = "Heat"
    degrees: Annotated[int, Flag("How hot.", short="-d", min=0, max=300)] = 180
    mode: Annotated[Literal["fan", "grill"], Flag("Which element.")] = "fan"
    light: Annotated[bool, Flag("Whether the lamp is on.")] = True
    clean: Annotated[bool, Flag("Clean afterwards.")] = False
    trays: Annotated[list[Path] | None, Flag("What goes in; repeat it.", long="--with")] = None
    timer: Annotated[float | None, Flag("Minutes.", shown="none")] = None
    size: Annotated[int, Flag("Room.", parse=lambda text: 2 * int(text))] = 7
    serial: str = "x1"  # no flag


@dataclass(frozen=True)
class Cook:
    """Settings of which a command takes a part."""

    name: Annotated[str, Flag("Who.")] = ""
    hat: Annotated[str, Flag("Size.")] = "M"
    secret: Annotated[str, Flag("Never asked.")] = "soy"


@dataclass(frozen=True)
class Rack:
    """Settings that mean something now and then."""

    height: Annotated[int, Flag("Which slot.", min=1)] = 3
    turned: Annotated[bool, Flag("Upside down.")] = False


def app(seen: list[Any]) -> typer.Typer:
    made = typer.Typer()

    @made.command()
    @with_flags
    def bake(
        dish: Annotated[str, typer.Argument()],
        oven: Oven,
        cook: Annotated[Cook, Subset(without=("secret",), required=("name",))],
        given: Given,
        rack: Annotated[Rack, Subset(conditional=True)],
        loud: Annotated[bool, Flag("Say so.")] = False,
    ) -> None:
        """Bake a dish."""
        seen.append((dish, oven, cook, set(given), loud, rack))

    return made


def bake(*words: str, code: int = 0, **variables: str) -> Any:
    seen: list[Any] = []
    done = CliRunner(env=variables).invoke(app(seen), list(words))
    assert done.exit_code == code, done.output
    return seen[0] if seen else " ".join(done.output.replace("│", " ").split())


def test_defaults_are_those_of_the_fields() -> None:
    assert bake("pie", "--name", "Ann") == (
        "pie",
        Oven(),
        Cook("Ann"),
        {"dish", "name"},
        False,
        Rack(),
    )


def test_every_field_can_be_set() -> None:
    dish, oven, cook, given, loud, rack = bake(
        *"pie --name Ann --hat L -d 200 --mode grill --no-light --clean --loud".split(),
        *"--with a --with b --timer 1.5 --size 4 --height 2".split(),
    )
    assert oven == Oven(200, "grill", False, True, [Path("a"), Path("b")], 1.5, 8)
    assert (dish, cook, loud, rack) == ("pie", Cook("Ann", "L"), True, Rack(2))
    assert given == {
        *("dish", "name", "hat", "degrees", "mode", "light"),
        *("clean", "trays", "timer", "size", "loud", "height"),
    }


def test_a_flag_that_is_given_its_default_is_given() -> None:
    assert "degrees" in bake("pie", "--name", "Ann", "-d", "180")[3]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pie"], "Missing option '--name'"),
        (["pie", "--name", "A", "-d", "301"], "less than or equal to 300"),
        (["pie", "--name", "A", "--mode", "steam"], "'steam' is not one of 'fan', 'grill'"),
        (["pie", "--name", "A", "--secret", "x"], "No such option: --secret"),
        (["pie", "--name", "A", "--serial", "x"], "No such option: --serial"),
        (["pie", "--name", "A", "--no-clean"], "No such option: --no-clean"),
        (["pie", "--name", "A", "--timer", "x"], "--timer"),
    ],
)
def test_what_a_field_cannot_be_is_refused(words: list[str], says: str) -> None:
    assert says in bake(*words, code=2)


def test_help_says_what_the_fields_say() -> None:
    text = bake("--help", COLUMNS="200")
    for words in (
        "Heat",
        "How hot.",
        "180",
        "--light",
        "--no-light",
        "--with",
        "--config",
        "none",
        "[default: (3)]",
    ):
        assert words in text
    assert "--trays" not in text


def test_commands_declare_no_flag_by_hand() -> None:
    """A flag is a field, or a parameter, with a Flag; only lmk's own -q, -v and --version are not."""
    for path in (Path(flags.__file__).parent).glob("cmd_*.py"):
        assert "typer.Option" not in path.read_text("utf-8"), path.name
