"""The documentation is kept true: pages, flags, command lines, snippets and links."""

import ast
import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.core import TyperArgument
from typer.main import get_command

import lmkcli
from lmkcli.cli.main import app
from lmkcli.spec.values import WHOLE
from tests.tutorials import PAGES as TUTORIALS  # run by test_tutorials.py

ROOT = Path(__file__).resolve().parents[1]
TOP = (
    *("ARCHITECTURE.md", "README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md"),
    "examples/README.md",
)
DOCS = ROOT / "docs"
NOTEBOOKS = (ROOT / "benchmarks").glob("*.md")  # measurements, next to the scripts that print them
PAGES = sorted([*(ROOT / name for name in TOP), *DOCS.rglob("*.md"), *NOTEBOOKS])
GROUP: Any = get_command(app)
CONTENTS, NOTES = DOCS / "README.md", DOCS / "conventions.md"


class Block(NamedTuple):
    """A fenced block of a page: its language and text, and those of the block that follows it."""

    language: str
    text: str
    next_language: str
    next_text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(*one, *other) for one, other in pairwise([*found, ("", "")])]


def command_lines() -> Iterator[tuple[str, str]]:
    """(page, line) for each line of a console block that runs lmk."""
    for page in PAGES:
        for block in blocks(page) if page not in TUTORIALS else []:
            if block.language == "console":
                lines = block.text.replace("\\\n", " ").splitlines()
                yield from ((page.name, line[2:]) for line in lines if line.startswith("$ "))


def page_ids(pages: list[Path]) -> list[str]:
    return [page.name for page in pages]


def parse(line: str) -> None:
    """Parse `[VARIABLE=value …] lmk …` as the shell and lmk would, and run nothing."""
    words = shlex.split(line)
    at = words.index("lmk")
    for variable in words[:at]:
        assert variable.partition("=")[0] in variables(), f"no flag has the variable {variable}"
    parent = GROUP.make_context("lmk", words[at + 1 :])
    _, command, rest = GROUP.resolve_command(parent, [*parent._protected_args, *parent.args])
    command.make_context(command.name, rest, parent=parent)


def variables() -> set[str]:
    """LMK_<COMMAND>_<FLAG> of every flag, by its longest spelling."""
    names = set()
    for verb, command in GROUP.commands.items():
        for option in options(command):
            longest = max(option.opts, key=len)
            names.add(f"LMK_{verb}{longest[1:]}".upper().replace("-", "_"))
    return names


def options(command: Any) -> list[Any]:
    return [param for param in command.params if not isinstance(param, TyperArgument)]


@pytest.mark.parametrize(
    "script", ["docs/reference.py", "docs/packages.py", "docs/pictures.py", "docs/stub.py"]
)
def test_what_is_generated_is_fresh(script: str) -> None:
    made = subprocess.run(
        [sys.executable, script, "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr


def page_of(verb: str) -> Path:
    """The page with the flags of a command: of this command alone, or of several."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
    several = [page for page, text in pages.items() if f"<!-- flags {verb} -->" in text]
    [page] = several or [DOCS / f"{verb}.md"]
    return page


@pytest.mark.parametrize("verb", list(GROUP.commands))
def test_every_command_and_flag_has_help_and_stands_on_its_page(verb: str) -> None:
    command = GROUP.commands[verb]
    page = page_of(verb)
    text = page.read_text(encoding="utf-8")
    assert (command.help or "").strip()
    row = f"| [{verb}]({page.relative_to(DOCS).as_posix()}"
    assert row in CONTENTS.read_text(encoding="utf-8"), "the table of commands links to its page"
    for param in command.params:
        assert (param.help or "").strip(), f"{verb} {param.name} has no help"
    for option in options(command):
        for spelling in (*option.opts, *option.secondary_opts):
            assert f"`{spelling}`" in text, f"{page.name} lacks {spelling}"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    inside = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    notebooks = {  # docs/website.py makes pages of them
        path.relative_to(ROOT).with_suffix(".md").as_posix()
        for path in ROOT.glob("examples/*.ipynb")
    }
    examples = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("examples/**/README.md")}
    assert set(named) == inside | set(TOP) - {"README.md"} | notebooks | examples
    assert len(named) == len(set(named)), "a page has one place"


@pytest.mark.parametrize(("page", "line"), list(command_lines()))
def test_command_lines_parse(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = next(block.text for block in blocks(NOTES) if block.language == "toml")
    (tmp_path / "experiment.toml").write_text(config, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "lmk" in shlex.split(line), f"{page}: a console block shows lmk alone"
    parse(line)


def test_the_parser_of_command_lines_refuses_what_lmk_would() -> None:
    for line in (
        "lmk encode x -m minilm --no-such-flag 1",
        "lmk encode x",
        "lmk search v -q a -k none",
        "lmk nosuch",
    ):
        with pytest.raises(Exception, match=r"(?i)no such|missing|valid integer|no command"):
            parse(line)
    with pytest.raises(AssertionError, match="LMK_SEARCH_K"):
        parse("LMK_SEARCH_K=3 lmk search v -q a")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """A folder with the notes.jsonl of docs/conventions.md and its vectors."""
    from lmkcli.encoding.jobs import plan
    from lmkcli.encoding.shard_run import run_encode
    from lmkcli.spec.recipe import RecipeOptions
    from lmkcli.spec.settings import EncodeSettings

    folder = tmp_path_factory.mktemp("examples")
    notes = next(block.text for block in blocks(NOTES) if block.language == "json")
    (folder / "notes.jsonl").write_text(notes, encoding="utf-8")
    job = plan(str(folder / "notes.jsonl"), RecipeOptions(model="minilm"), EncodeSettings(), WHOLE)
    run_encode(job, folder / "notes-vectors")
    return folder


ELSEWHERE = {"CONTRIBUTING.md"}  # tests/test_repository.py runs its code
SNIPPETS = [
    page
    for page in PAGES
    if page.name not in ELSEWHERE
    and page not in TUTORIALS
    and any(block.language == "python" for block in blocks(page))
]


@pytest.mark.parametrize("page", SNIPPETS, ids=page_ids(SNIPPETS))
def test_python_snippets_run_and_print_what_the_page_shows(
    page: Path, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(examples, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, page.name, "exec"), {})
        assert block.next_language == "text", "each snippet is followed by what it prints"
        assert printed.getvalue() == block.next_text


GUIDES = sorted([*DOCS.rglob("*.md"), ROOT / "ARCHITECTURE.md"])


@pytest.mark.parametrize("page", GUIDES, ids=page_ids(GUIDES))
def test_a_page_opens_with_what_its_reader_can_do_after_it(page: Path) -> None:
    opening = page.read_text(encoding="utf-8").split("\n\n")[1]
    promise = r"\bAfter this page,? (you |lmk |one )|^In this tutorial you "
    assert re.search(promise, opening), opening


@pytest.mark.parametrize("page", PAGES, ids=page_ids(PAGES))
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.is_file(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(found), f"{page.name} links to {target}"


def test_the_python_reference_has_every_public_name() -> None:
    shown = re.findall(r"^::: lmkcli\.(\w+)$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted(lmkcli.__all__)


def test_settings_of_python_are_on_the_pages_of_their_flags() -> None:
    recipe, reference = (DOCS / name for name in ("recipe.md", "api.md"))
    flags, named = recipe.read_text("utf-8"), reference.read_text("utf-8")
    for field in fields(lmkcli.RecipeOptions):
        flag = field.name.replace("_", "-")
        assert f"`--{flag}`" in flags or field.name == "model", f"{recipe.name} lacks --{flag}"
        assert field.default is None or f"`{field.name}`" in named, field.name
    for field in (*fields(lmkcli.EncodeSettings), *fields(lmkcli.OpenSettings)):
        assert f"`{field.name}`" in named, f"{reference.name} lacks {field.name}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_the_command_lines_of_the_readme_are_those_of_ci() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    demo, test = re.findall(r"^python3 -m venv .*$", readme, re.MULTILINE)
    assert demo.endswith(
        '.venv/bin/pip install -c constraints.txt ".[faiss-cpu,demo]" && .venv/bin/lmk demo'
    )
    assert test.endswith(" && .venv/bin/python -m pytest")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    pattern = re.search(r"grep -E '(.*)' README\.md", ci)
    assert pattern is not None
    assert re.findall(pattern[1], readme, re.MULTILINE) == [test]
    assert 'bash -euxc "$readme"\n' in ci, "CI runs the README's line as it is"


def test_the_extras_of_the_readme_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r'"\.\[([\w,-]+)\]"', (ROOT / "README.md").read_text(encoding="utf-8"))
    assert named
    for extra in ",".join(named).split(","):
        assert extra in project["optional-dependencies"]


@pytest.mark.parametrize("page", PAGES, ids=page_ids(PAGES))
def test_no_page_names_a_folder_of_some_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![^\s\"'`(=])/(\w+)/", text)) <= {"data", "dev", "v1"}


@pytest.mark.parametrize("folder", ["lmkcli", "docs", "benchmarks"])
def test_nothing_refers_to_a_file_that_is_not_in_the_repository(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".toml", ".md"):
            found = re.search(r"DESIGN|\bspecs\b|parity/", path.read_text(encoding="utf-8"))
            assert not found, f"{path} refers to {found}"


def messages() -> list[str]:
    """What stands under 'message' in the tables of docs/troubleshooting.md."""
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)


def test_the_messages_of_troubleshooting_are_those_of_the_code() -> None:
    said = "\n".join(text for path in (ROOT / "lmkcli").rglob("*.py") for text in literals(path))
    quoted = messages()
    assert len(quoted) > 26
    assert not [text for text in quoted if not re.search(pattern(text), said)]


def literals(path: Path) -> Iterator[str]:
    """Every string of a module, a line each; … stands for what an f-string fills in."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        if isinstance(node, (ast.JoinedStr, ast.Constant)):
            texts = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            yield "".join(texts).replace("\n", " ")


def pattern(message: str) -> str:
    return re.escape(message).replace("…", ".*")


def test_the_numbers_of_choosing_are_those_of_the_pages_that_it_links_to() -> None:
    """A section links to where its numbers were measured, a row of a table with numbers too."""
    text = (DOCS / "choosing.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"\[arXiv [^]]*\]\([^)]*\)", "", prose)
    checked = 0
    for section in prose.split("\n## "):
        rows = [row for row in section.splitlines() if row.startswith("|") and "](" in row]
        for part in (*rows, section):
            pages = set(re.findall(r"\]\(((?:\.\./benchmarks/)?[\w-]+\.md)", part))
            measured = " ".join((DOCS / page).read_text(encoding="utf-8") for page in pages)
            for number in re.findall(r"\d+\.\d+|\d{1,3}(?:,\d{3})+", part):
                assert number in measured, f"{number}: {part}"
                checked += 1
    assert checked > 40


@pytest.mark.slow  # mypy reads the types of all libraries
@pytest.mark.parametrize("name", ["python.md"])
def test_type_checkers_accept_the_python_snippets(name: str, tmp_path: Path) -> None:
    snippets = [block for block in blocks(DOCS / name) if block.language == "python"]
    for number, block in enumerate(snippets):
        (tmp_path / f"snippet_{number}.py").write_text(block.text, "utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache", tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
    assert f"no issues found in {len(snippets)} source files" in checked.stdout


def test_the_results_of_the_readme_are_those_of_the_pages_that_it_links_to() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    results = text.partition("\n## Results\n")[2].partition("\n## ")[0]
    pages = set(re.findall(r"\]\(((?:docs|benchmarks)/[\w-]+\.md)", results))
    measured = " ".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    numbers = re.findall(r"\d+\.\d+|\d{1,3}(?:,\d{3})+", results)
    assert len(numbers) > 22
    assert not [number for number in numbers if number not in measured]
