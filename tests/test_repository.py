"""What people look for in a repository works: the worked example, the examples, the project files."""

import contextlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import lmkcli
from lmkcli import catalog

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
GUIDE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def run(words: list[str], folder: Path, package: Path = ROOT) -> str:
    """What a command prints that is run in `folder` with the package of `package`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    more = {"PYTHONPATH": str(package), "PATH": path}
    done = subprocess.run(
        words, cwd=folder, env=os.environ | more, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.slow
def test_the_pooler_of_the_guide_is_two_rows(tmp_path: Path, minilm: Path) -> None:
    """In a copy of the package: the contract tests pass, and the command line shows what the page shows."""
    start, stop = GUIDE.index("## How to add a pooler"), GUIDE.index("## How to add a source")
    file, row = re.findall(r"^```python\n(.*?)^```$", GUIDE[start:stop], re.DOTALL | re.MULTILINE)
    name = re.match(r"# (\S+)\n", file)
    assert name is not None
    shutil.copytree(ROOT / "lmkcli", tmp_path / "lmkcli")
    files = ("conftest.py", "levels.py", "pooling/texts.py", "pooling/test_contract.py")
    for needed in ("pyproject.toml", *(f"tests/{name}" for name in files)):
        (tmp_path / needed).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / needed, tmp_path / needed)
    with (tmp_path / name[1]).open("a") as rows:
        rows.write(file)
    table = tmp_path / "lmkcli" / "core.py"
    source = table.read_text()
    opening = source.index("(\n", source.index("POOLERS = ")) + 2
    table.write_text(f"{source[:opening]}{row.strip()},\n{source[opening:]}")

    run([sys.executable, "-m", "pytest", "tests/pooling/test_contract.py"], tmp_path, tmp_path)
    shown = re.search(
        r"^\$ lmk (.* --pool last-two .*?)\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE
    )
    assert shown is not None
    lmk = [sys.executable, "-m", "lmkcli.cli.main"]
    words = re.findall(r'"[^"]*"|\S+', shown[1])
    printed = run([*lmk, *(word.strip('"') for word in words)], tmp_path, tmp_path)
    assert printed == shown[2].splitlines(keepends=True)[1]  # the first line is a note on stderr


def test_the_guide_names_what_is_there() -> None:
    for path in re.findall(r"`((?:lmkcli|tests)/[\w/.]+)`", GUIDE):
        if "/NAME" not in path:
            assert (ROOT / path).exists(), path
    for table in re.findall(r"row to `(\w+)`", GUIDE):
        assert isinstance(getattr(catalog, table), Mapping)


FRAMEWORKS = {
    "langchain_retriever.py": "langchain_core",
    "llamaindex_retriever.py": "llama_index.core",
    "onnx_landmarks.py": "onnxscript",
}


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_runs_offline(
    script: str, minilm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if script in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[script])
    monkeypatch.setattr("sys.argv", [script, str(minilm)])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.strip()
    page = (EXAMPLES / "README.md").read_text("utf-8")
    shown = re.search(rf"^python examples/{script}\n```\n\n```text\n(.*?)^```$", page, re.M | re.S)
    assert shown is None or printed == shown[1]


@pytest.mark.slow
def test_the_example_of_the_command_line_runs(
    tmp_path: Path, minilm: Path, lmk_program: Path
) -> None:
    words = [
        "env",
        f"PATH={lmk_program.parent}:{os.environ['PATH']}",
        "bash",
        str(EXAMPLES / "hybrid.sh"),
    ]
    printed = run([*words, "made", str(minilm)], tmp_path)
    assert len(re.findall(r"^\w+\.trec +0\.\d{4}", printed, re.MULTILINE)) == 3


@pytest.mark.slow
def test_other_programs_read_hits_from_a_pipe(
    tmp_path: Path, minilm: Path, lmk_program: Path
) -> None:
    page = (ROOT / "docs/search.md").read_text("utf-8")
    found = re.search(
        r"^```sh\n(lmk search [^`]*--json [^`]*)```\n\n```text\n(.*?)^```$", page, re.M | re.S
    )
    assert found is not None
    notes = [
        {"id": "bread", "title": "Sourdough", "text": "Let the dough rise overnight."},
        {"id": "bike", "title": "Flat tyre", "text": found[2].splitlines()[-1]},
    ]
    (tmp_path / "notes.jsonl").write_text("".join(f"{json.dumps(note)}\n" for note in notes))
    script = found[1] if shutil.which("jq") else found[1].partition("\n")[2]
    words = f"lmk encode notes.jsonl -m {minilm} -o notes-vectors >&2\n{script}"
    path = f"PATH={lmk_program.parent}:{os.environ['PATH']}"
    printed = run(["env", path, "bash", "-c", words], tmp_path)
    assert printed
    assert found[2].endswith(printed)


def test_the_notebook_prints_what_it_shows(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads((EXAMPLES / "landmark_pooling.ipynb").read_text("utf-8"))
    monkeypatch.chdir(EXAMPLES)
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec("".join(cell["source"]), names)
        assert printed.getvalue() == "".join(cell["outputs"][0]["text"])


def test_every_example_is_in_their_table() -> None:
    page = (EXAMPLES / "README.md").read_text("utf-8")
    for path in EXAMPLES.iterdir():
        if path.suffix in (".py", ".sh", ".ipynb"):
            assert f"[{path.name}]({path.name})" in page


WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text("utf-8"))["jobs"]
    for path in (ROOT / ".github/workflows").glob("*.yml")
}


def test_the_workflow_runs_what_developers_run_on_every_python() -> None:
    job = WORKFLOWS["ci"]["test"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = [
        each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each
    ]
    assert job["strategy"]["matrix"]["python"] == versions
    assert WORKFLOWS["nightly"]["sweeps"]["strategy"]["matrix"]["python"] == versions
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflows_have_the_keys_that_github_knows(workflow: str, tmp_path: Path) -> None:
    path = ROOT / ".github/workflows" / f"{workflow}.yml"
    misspelled = tmp_path / path.name
    misspelled.write_text(path.read_text("utf-8").replace("timeout-minutes", "timeout-minute"))
    check = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    for file, valid in ((path, True), (misspelled, False)):
        done = subprocess.run([*check, file], capture_output=True, text=True)
        assert (done.returncode == 0) == valid, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_jobs_run_the_recipes_of_the_justfile(workflow: str) -> None:
    recipes = set(re.findall(r"^(\w+)[^:=\n]*:$", (ROOT / "justfile").read_text(), re.MULTILINE))
    for job in WORKFLOWS[workflow].values():
        lines = [step["run"] for step in job["steps"] if "run" in step]
        matrix = job.get("strategy", {}).get("matrix", {})
        for line in lines:
            if line in (".ci/run", "pipx install rust-just"):
                continue
            program, recipe, *_ = line.split(maxsplit=2)
            chosen = (
                [each["versions"] for each in matrix["include"]] if "${{" in recipe else [recipe]
            )
            assert program == "just"
            assert set(chosen) <= recipes, line
        assert lines or "id-token" in job.get("permissions", {})


def test_a_job_that_may_publish_runs_no_code_of_the_repository() -> None:
    jobs = [job for name in WORKFLOWS.values() for job in name.values()]
    publishing = [job for job in jobs if "id-token" in job.get("permissions", {})]
    assert [job.get("environment") for job in publishing] == ["pypi"]
    for job in publishing:
        assert not [step for step in job["steps"] if "run" in step or "checkout" in step["uses"]]
        assert set(job["needs"]) == set(WORKFLOWS["release"]) - {"publish"}


@pytest.mark.parametrize(
    ("file", "schema"),
    [
        ("dependabot.yml", "dependabot"),
        ("ISSUE_TEMPLATE/bug.yml", "github-issue-forms"),
        ("ISSUE_TEMPLATE/proposal.yml", "github-issue-forms"),
        ("ISSUE_TEMPLATE/config.yml", "github-issue-config"),
    ],
)
def test_forms_have_the_keys_that_github_knows(file: str, schema: str) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*check, ROOT / ".github" / file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("tag", "changes", "accepted"),
    [
        (f"v{lmkcli.__version__}", f"## [{lmkcli.__version__}] - 2026-01-31", True),
        (f"v{lmkcli.__version__}", "## [Unreleased]", False),
        ("v0.0.0", f"## [{lmkcli.__version__}] - 2026-01-31", False),
    ],
)
def test_a_release_needs_its_tag_and_its_changes(
    tag: str, changes: str, accepted: bool, tmp_path: Path
) -> None:
    recipe = (ROOT / "justfile").read_text("utf-8").partition("\ntagged:\n")[2]
    script = re.sub(r"^    ", "", recipe.partition("\n\n")[0], flags=re.MULTILINE)
    (tmp_path / "lmkcli").mkdir()
    shutil.copy(ROOT / "lmkcli/__init__.py", tmp_path / "lmkcli")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{changes}\n")
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=os.environ | {"GITHUB_REF_NAME": tag}, check=False
    )
    assert (done.returncode == 0) == accepted


def test_an_index_shows_the_readme_without_paths_into_the_repository() -> None:
    describe = runpy.run_path(str(ROOT / "docs/description.py"))["description"]
    readme = (ROOT / "README.md").read_text("utf-8")
    relative = re.compile(r"\]\((?!https?://|#)")
    assert len(relative.findall(readme)) > 10
    for source in ("", "https://example.org/lmk"):
        assert not relative.search(describe(readme, source))
        assert "constraints.txt" not in describe(readme, source)
        assert "copy of this repository" not in describe(readme, source)
        assert 'pip install "lmkcli[faiss-cpu,demo]" && .venv/bin/lmk demo' in describe(
            readme, source
        )
    page = "[Jobs](docs/jobs.md#a), ![A picture](docs/a.png)\n[Web](https://example.org/)\n"
    assert describe(page, "https://example.org/lmk/") == (
        "[Jobs](https://example.org/lmk/blob/HEAD/docs/jobs.md#a), "
        "![A picture](https://example.org/lmk/raw/HEAD/docs/a.png)\n[Web](https://example.org/)\n"
    )
    assert describe(page, "") == "Jobs, \n[Web](https://example.org/)\n"
    code = "```\n[a](b)\n```\n"
    assert describe(code, "") == code


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["version"] == lmkcli.__version__
    assert citation["license"] == project["license"]
    assert citation["references"][0]["url"] == project["urls"]["Paper"]


def test_the_guide_shows_the_recipes_of_the_justfile() -> None:
    justfile = (ROOT / "justfile").read_text("utf-8")
    recipes = re.findall(r"^(\w+)[^:=\n]*:$", justfile, re.MULTILINE)
    setup = GUIDE.partition("## Tests")[0]
    assert re.findall(r"^just (\w+)", setup, re.MULTILINE) == [r for r in recipes if r != "list"]


def test_the_hooks_are_the_checks_of_ci() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    for hook in config["repos"][0]["hooks"]:
        tool, command = hook["entry"].split()[:2]
        assert f"/bin/{tool} {command}" in ci
