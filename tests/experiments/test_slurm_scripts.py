"""Batch scripts: what a task runs, where its result goes, what is queued again; without a SLURM."""

import fcntl
import os
import subprocess
import time
from pathlib import Path

import pytest

from lmkcli.errors import DataError
from lmkcli.experiments import running, slurm
from lmkcli.experiments.running import Results
from lmkcli.experiments.steps import Step
from lmkcli.operations.encode import Encode
from lmkcli.operations.search import Search

LMK = """#!/bin/bash
[ -n "$LMK_ENCODE_POOL" ] && exit 9
echo "lmk: $*" >&2
[ "$2" = fail ] && exit 3
[ "$2" = stop ] && exit 75
[ "$2" = slow ] && sleep 1
echo "[\\"$*\\"]"
"""


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """A PATH on which srun runs what it is given, and scontrol notes what it is asked."""
    programs = {
        "srun": '#!/bin/bash\nexec "$@"\n',
        "scontrol": f'#!/bin/bash\necho "$@" >> {tmp_path}/asked\n',
        "sbatch": f'#!/bin/bash\necho "$@" >> {tmp_path}/submitted\nwc -l < {tmp_path}/submitted\n',
        "squeue": "#!/bin/bash\necho 1_0 2_3 9_1\n",
        "mylmk": LMK,
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    variables = {
        "LMK_ENCODE_POOL": "cls"
    }  # of a flag: where a grid runs by itself it does not count
    return {**os.environ, **variables, "PATH": path, "SLURM_JOB_ID": "7"}


def task(script: Path, number: int, shell: dict[str, str]) -> int:
    environment = {**shell, "SLURM_ARRAY_TASK_ID": str(number)}
    return subprocess.run(["bash", str(script)], env=environment, check=False).returncode


def test_a_task_leaves_its_result_where_a_grid_does(tmp_path: Path, shell: dict[str, str]) -> None:
    results = Results(tmp_path / "my results")
    steps = {
        "encode-1": Step("encode-1", Encode("it's", model="m"), shards=2),
        "encode-2": Step("encode-2", Encode("fail", model="m")),
        "encode-3": Step("encode-3", Encode("stop", model="m")),
        "search-1": Step("search-1", Search("z", "queries"), ("encode-1",)),
    }
    options = {"": {"time": "01:00:00"}, "encode": {"gres": "gpu:1", "shards": "2", "setup": "A=1"}}
    encode, search = slurm.write(steps, results, options, ["mylmk"])
    text = encode.read_text()
    assert "#SBATCH --array=0-3\n" in text
    assert f"#SBATCH --output='{results.folder}/slurm/encode-%a.log'\n" in text
    assert "#SBATCH --gres=gpu:1\n" in text
    assert "#SBATCH --time=01:00:00\n" in text
    assert "shards=" not in text
    assert "\nA=1\n" in text
    assert "gres" not in search.read_text()
    assert [task(encode, number, shell) for number in range(4)] == [0, 0, 3, 75]
    assert (
        results.of("encode-1") / "shard-1.json"
    ).read_text() == '["encode it\'s -m m --shard 1/2 --json"]\n'
    assert "lmk encode it's -m m --shard 0/2" in (results.of("encode-1") / "log.txt").read_text()
    assert not list(results.of("encode-2").glob("*.json"))
    assert results.error("encode-2") == "encode fail -m m --json"
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
    (results.of("encode-1") / "vectors").mkdir()  # which lmk itself would have written
    again = slurm.write(steps, results, options, ["mylmk"])[0].read_text()
    assert "--array=0-1\n" in again  # what has ended well is not among its tasks


def test_two_tasks_or_a_task_and_a_grid_never_make_the_same(
    tmp_path: Path, shell: dict[str, str]
) -> None:
    results = Results(tmp_path / "results")
    steps = {"encode-1": Step("encode-1", Encode("slow", model="m"))}
    (script,) = slurm.write(steps, results, {}, ["mylmk"])
    folder = results.of("encode-1")
    folder.mkdir(parents=True)
    shell |= {"SLURM_ARRAY_TASK_ID": "0"}
    with open(folder / f"result.json{running.LOCK}", "a") as lock:  # as a grid holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        tasks = [
            subprocess.Popen(["bash", str(script)], env=shell | {"SLURM_JOB_ID": job})
            for job in ("7", "8")
        ]
        time.sleep(0.5)
        assert not (folder / "log.txt").exists()
    assert [task.wait(60) for task in tasks] == [0, 0]
    assert (folder / "log.txt").read_text().count("lmk: encode slow") == 1
    assert Results(tmp_path / "results").seconds("encode-1") >= 1


def test_what_lost_its_output_is_submitted_again(tmp_path: Path, shell: dict[str, str]) -> None:
    results = Results(tmp_path / "results")
    steps = {"encode-1": Step("encode-1", Encode("x", model="m"), shards=2)}
    (script,) = slurm.write(steps, results, {}, ["mylmk"])
    assert [task(script, number, shell) for number in (0, 1)] == [0, 0]
    (script,) = slurm.write(steps, results, {}, ["mylmk"])  # nothing wrote vectors
    assert "--array=0-1\n" in script.read_text()
    (results.of("encode-1") / "vectors").mkdir()
    assert task(script, 0, shell) == 0
    (script,) = slurm.write(steps, results, {}, ["mylmk"])
    assert "--array=0-0\n" in script.read_text()


def test_each_array_waits_for_the_one_before_it(
    tmp_path: Path, shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", shell["PATH"])
    folder = tmp_path / "results"
    (folder / "slurm").mkdir(parents=True)
    scripts = [folder / "slurm" / f"{verb}.sh" for verb in ("encode", "search")]
    assert slurm.submit(scripts, folder) == {"encode": "1", "search": "2"}
    assert (tmp_path / "submitted").read_text().splitlines() == [
        f"--parsable {scripts[0]}",
        f"--parsable --dependency=afterany:1 {scripts[1]}",
    ]
    assert slurm.queued(folder) == ["1_0", "2_3"]
    assert slurm.queued(tmp_path) == []


def test_without_slurm_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "slurm").mkdir()
    with pytest.raises(DataError, match="there is no sbatch here"):
        slurm.submit([tmp_path / "slurm" / "encode.sh"], tmp_path)
