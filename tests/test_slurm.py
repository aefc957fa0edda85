"""A real SLURM: the scripts of docs/jobs.md and docs/train.md, cancelled, signalled and requeued halfway,
grids, and the tutorial on SLURM.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from lmkcli.artifact import shards
from lmkcli.data.collection import Shard
from lmkcli.store import parts
from lmkcli.vectors.stored import Vectors
from tests import forked, tiny, tutorials
from tests.cluster import Cluster, waited

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]


def script(page: str = "jobs.md", command: str = "") -> str:
    """The batch script of a page, with its own command or another one of the page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    script = next(block for block in blocks if "#SBATCH" in block)
    if not command:
        return script
    line = next(block for block in blocks if block.startswith(f"srun {command} "))
    changed = re.sub(r"^srun .*\n", lambda _: line, script, flags=re.MULTILINE)
    assert changed != script
    return changed


def collection() -> str:
    """scifact if it is there, else the standard library."""
    scifact = ROOT.parent / "shared" / "data" / "scifact"
    return str(scifact) if scifact.is_dir() else "stdlib/functions"


def test_an_array_whose_tasks_are_stopped_in_the_middle_equals_one_process(
    cluster: Cluster, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    vectors, whole = tmp_path / "vectors", tmp_path / "whole"
    lmk = forked.program(tmp_path / "bin", pause=0.5)
    job = cluster.folder / "job.sh"
    job.write_text(script().replace("0-7", "0-4").replace("/8", "/5"))
    settings = {"DTYPE": "fp32", "STORE_DTYPE": "fp32", "BATCH_TOKENS": "2048"}
    cluster.env |= {f"LMK_ENCODE_{name}": value for name, value in settings.items()} | {
        "COLLECTION": collection(),
        "MODEL": str(tiny_model("bert")),
        "VECTORS": str(vectors),
        "PATH": f"{lmk.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }

    def lives(task: int) -> Callable[[], bool]:
        """Whether a task has written something and is not done."""
        shard = Shard(task, 5)
        return lambda: any(name.shard == shard for name in parts.list_parts(vectors))

    array = cluster.run("sbatch --parsable job.sh").strip()
    waited("task 1", lives(1), cluster.logs)
    cluster.run(f"scancel {array}_1")
    waited("task 3", lives(3), cluster.logs)
    # As near the end of its time. scancel would send it again, also to the next life of the task.
    cluster.run(f"timeout 1 scancel --signal=USR1 {array}_3", check=False)
    waited("task 4", lives(4), cluster.logs)
    cluster.run(f"scontrol requeue {array}_4")  # as when it is preempted
    waited("the array", lambda: not cluster.jobs(), cluster.logs)

    assert parts.read_state(vectors, 5).unfinished == [1], cluster.logs()
    for task, name in ((3, "SIGUSR1"), (4, "SIGTERM")):
        log = (cluster.folder / f"encode-{task}.log").read_text()
        assert f"{name}: stopping" in log
        assert "Exited with exit code 75" in log
    assert parts.covered_rows(parts.cover(parts.list_parts(vectors), Shard(1, 5))) > 0
    shown = cluster.run(f"{lmk} show {vectors}")
    assert "shards: 4 of 5 finished" in shown
    line = next(li for li in shown.splitlines() if "sbatch" in li).partition(": ")[2]
    assert line.startswith("sbatch --array=1 job.sh  # ")
    cluster.run(line)
    waited("the rest", lambda: not cluster.jobs(), cluster.logs)

    cluster.run(f'{lmk} encode "$COLLECTION" -m "$MODEL" -o {whole}')
    mine, theirs = Vectors(vectors), Vectors(whole)
    rows = np.arange(theirs.rows)
    assert mine.rows == theirs.rows > 1000
    assert mine.docs(rows) == theirs.docs(rows)
    assert mine.counts() == theirs.counts()
    assert mine.collection_digest() == theirs.collection_digest()
    np.testing.assert_allclose(mine.at(rows).vectors, theirs.at(rows).vectors, rtol=0, atol=1e-6)
    assert mine.dim == tiny.WIDTH
    assert not list((vectors / "parts").glob(".growing*"))


def test_an_index_and_a_search_in_shards_of_which_tasks_are_killed_in_the_middle(
    cluster: Cluster, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    beir, vectors, whole = (
        tiny.collection(tmp_path / "beir", 300, 30),
        tmp_path / "v",
        tmp_path / "w",
    )
    lmk = forked.program(tmp_path / "bin", pause=4)
    index, run = tmp_path / "index", tmp_path / "run.trec"
    cluster.env |= {
        "COLLECTION": str(beir), "VECTORS": str(vectors), "KIND": "ivf", "INDEX": str(index),
        "RUN": str(run), "PATH": f"{lmk.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    cluster.run(f'{lmk} encode "$COLLECTION" -m {tiny_model("bert")} -o "$VECTORS"')
    killed_in_the_middle(cluster, lmk, "lmk index", index)
    join = f'{lmk} index "$VECTORS" --kind ivf -o'
    cluster.run(f'{join} "$INDEX" && {join} {whole}')
    cluster.env["VECTORS"] = str(index)
    killed_in_the_middle(cluster, lmk, "lmk search", run)
    for searched, output in ((index, run), (whole, tmp_path / "w.trec")):
        cluster.run(f'{lmk} search {searched} "$COLLECTION" -o {output}')
    assert run.read_text() == (tmp_path / "w.trec").read_text()
    assert len(run.read_text().splitlines()) == 30 * 300


def killed_in_the_middle(cluster: Cluster, lmk: Path, command: str, output: Path) -> None:
    """Run the script of a command with three tasks, of which one is killed; then do what show says."""
    job, folder = cluster.folder / "job.sh", shards.shards_folder(output)
    job.write_text(script(command=command).replace("0-7", "0-2").replace("/8", "/3"))
    array = cluster.run("sbatch --parsable job.sh").strip()
    waited("the first task", (folder / "manifest.json").exists, cluster.logs)
    (victim, *_) = cluster.run("squeue -h -r -t R -o %i").split()
    cluster.run(f"scancel --signal=KILL --full {victim}")
    waited("the array", lambda: not cluster.jobs(), cluster.logs)
    left = shards.Shards(folder).unfinished()
    assert [f"{array}_{number}" for number in left] == [victim], cluster.logs()
    shown = cluster.run(f"{lmk} show {folder}")
    assert "shards: 2 of 3 finished" in shown
    cluster.run(next(li for li in shown.splitlines() if "sbatch" in li).partition(": ")[2])
    waited("the rest", lambda: not cluster.jobs(), cluster.logs)
    assert shards.Shards(folder).unfinished() == [], cluster.logs()


def test_a_training_of_two_tasks_that_is_stopped_queues_again_and_ends_as_one_process(
    cluster: Cluster, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """One task alone gets the signal; both stop at the same step."""
    pairs, model = tmp_path / "pairs.jsonl", tmp_path / "model"
    lines = [{"query": tiny.sentence(i, 4), "pos": [tiny.sentence(i, 12)]} for i in range(80)]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    lmk = forked.program(tmp_path / "bin")
    job = cluster.folder / "train.sh"
    words = "--batch-size 256 --steps 5000"
    quick = "--batch-size 8 --steps 60 --dtype fp32 --device cpu --lr 1e-3 --log-every 1"
    text = script("train.md").replace(words, quick)
    assert quick in text
    job.write_text(text)
    cluster.env |= {
        "EXAMPLES": str(pairs), "BASE": str(tiny_model("modernbert")), "MODEL": str(model),
        "PATH": f"{lmk.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    number = cluster.run("sbatch --parsable train.sh").strip()

    def steps() -> int:
        log = model / "log.jsonl"
        return len(log.read_text().splitlines()) if log.exists() else 0

    waited("ten steps", lambda: steps() >= 10, cluster.logs)
    mine = re.escape(str(model))
    tasks = cluster.run(f"pgrep -f 'lmk_paced.* train .*{mine}'").split()
    os.kill(int(tasks[-1]), signal.SIGUSR1)
    waited("the end of the job", lambda: not cluster.jobs(), cluster.logs)
    log = (cluster.folder / "train.log").read_text()
    assert "Exited with exit code 75" in log, cluster.logs()
    assert log.count("SIGUSR1") >= 1
    alone = tmp_path / "alone"
    cluster.run(
        f"{lmk} train {pairs} -m {tiny_model('modernbert')} --pool lmk --gran 32,64,128,256 {quick} "
        f"-o {alone}"
    )
    one, two = (load_file(folder / "model.safetensors") for folder in (alone, model))
    for name in one:
        # Adam divides by the gradient's own size: where that is rounding alone, so is the step
        assert (one[name] - two[name]).abs().mean() <= 1e-4, (name, number)


GRID = """
[grid]
collections = "{collection}"
model = "{model}"
pool = ["mean", "cls"]
max-length = 32
dtype = "fp32"
store-dtype = "fp32"
measures = ["nDCG@10", "R@5"]
[slurm.encode]
shards = 2
"""


def test_a_grid_has_the_numbers_of_one_that_runs_here_and_makes_nothing_twice(
    cluster: Cluster, tiny_model: Callable[[str], Path], beir: Path, tmp_path: Path
) -> None:
    cluster.env |= {"PYTHONPATH": str(ROOT)}
    file, here, there = tmp_path / "grid.toml", tmp_path / "here", tmp_path / "there"
    file.write_text(GRID.format(collection=beir, model=tiny_model("bert")))
    lmk = f"{sys.executable} -m lmkcli.cli.main grid {file}"
    assert cluster.run(f"{lmk} -o {there} --slurm").splitlines()[0].endswith(", 1 steps")
    first = set(cluster.jobs())
    assert "in the queue" in cluster.run(f"{lmk} -o {there} --slurm")
    (there / "slurm" / "jobs.json").unlink()  # as if two had submitted at a time
    cluster.run(f"{lmk} -o {there} --slurm")
    assert set(cluster.jobs()) - first, cluster.logs()
    waited("both submissions", lambda: not cluster.jobs(), cluster.logs)
    logs = {path.parent.name: path.read_text() for path in there.glob("steps/*/log.txt")}
    assert len(logs) == 7
    for key, log in logs.items():
        assert log.count("$ lmk ") == (2 if key.startswith("encode-") else 1), (key, log)
    again = cluster.run(f"{lmk} -o {there} --slurm -f json")  # nothing is left: the table
    local = cluster.run(f"{lmk} -o {here} -f json")
    for one, other in zip(json.loads(again), json.loads(local), strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=1e-6)
        assert {**one, "score": 0} == {**other, "score": 0}


def test_the_tutorial_prints_what_it_shows(
    cluster: Cluster, minilm: Path, lmk_program: Path, tmp_path: Path
) -> None:
    page = ROOT / "docs" / "tutorials" / "slurm.md"
    tutorials.check(page, tmp_path, lmk_program, more={"SLURM_CONF": cluster.env["SLURM_CONF"]})
