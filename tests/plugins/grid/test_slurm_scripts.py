"""Batch scripts, without SLURM: commands of tasks, files of results, requeued tasks."""

import fcntl
import os
import subprocess
import time
from pathlib import Path

import pytest

from lmkcli.errors import DataError, UsageError
from lmkcli.operations.encode import Encode
from lmkcli.operations.search import Search
from lmkcli.plugins.grid import execution
from lmkcli.plugins.grid.execution import ResultsFolder
from lmkcli.plugins.grid.steps import GridStep

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
    """A PATH with an srun that runs its arguments, and an scontrol that logs its arguments."""
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
    variables = {"LMK_ENCODE_POOL": "cls"}  # a grid ignores variables for flags
    return {**os.environ, **variables, "PATH": path, "SLURM_JOB_ID": "7"}


def task(script: Path, number: int, shell: dict[str, str]) -> int:
    environment = {**shell, "SLURM_ARRAY_TASK_ID": str(number)}
    return subprocess.run(["bash", str(script)], env=environment, check=False).returncode


def test_a_task_writes_its_result_like_a_grid(tmp_path: Path, shell: dict[str, str]) -> None:
    results = ResultsFolder(tmp_path / "my results")
    steps = {
        "encode-1": GridStep("encode-1", Encode("it's", model="m"), shards=2),
        "encode-2": GridStep("encode-2", Encode("fail", model="m")),
        "encode-3": GridStep("encode-3", Encode("stop", model="m")),
        "search-1": GridStep("search-1", Search("z", "queries"), ("encode-1",)),
    }
    options = {"": {"time": "01:00:00"}, "encode": {"gres": "gpu:1", "shards": "2", "setup": "A=1"}}
    encode, search = execution.write_scripts(steps, results, options, ["mylmk"])
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
    (results.of("encode-1") / "vectors").mkdir()  # a real lmk would write it
    again = execution.write_scripts(steps, results, options, ["mylmk"])[0].read_text()
    assert "--array=0-1\n" in again  # finished operations are not among its tasks


def test_two_tasks_or_a_task_and_a_grid_never_run_the_same_command(
    tmp_path: Path, shell: dict[str, str]
) -> None:
    results = ResultsFolder(tmp_path / "results")
    steps = {"encode-1": GridStep("encode-1", Encode("slow", model="m"))}
    (script,) = execution.write_scripts(steps, results, {}, ["mylmk"])
    folder = results.of("encode-1")
    folder.mkdir(parents=True)
    shell |= {"SLURM_ARRAY_TASK_ID": "0"}
    with open(folder / f"result.json{execution.LOCK}", "a") as lock:  # like a grid
        fcntl.flock(lock, fcntl.LOCK_EX)
        tasks = [
            subprocess.Popen(["bash", str(script)], env=shell | {"SLURM_JOB_ID": job})
            for job in ("7", "8")
        ]
        time.sleep(0.5)
        assert not (folder / "log.txt").exists()
    assert [task.wait() for task in tasks] == [0, 0]
    assert (folder / "log.txt").read_text().count("lmk: encode slow") == 1
    assert ResultsFolder(tmp_path / "results").seconds("encode-1") >= 1


def test_steps_without_an_output_are_submitted_again(tmp_path: Path, shell: dict[str, str]) -> None:
    results = ResultsFolder(tmp_path / "results")
    steps = {"encode-1": GridStep("encode-1", Encode("x", model="m"), shards=2)}
    (script,) = execution.write_scripts(steps, results, {}, ["mylmk"])
    assert [task(script, number, shell) for number in (0, 1)] == [0, 0]
    (script,) = execution.write_scripts(steps, results, {}, ["mylmk"])  # no task wrote vectors
    assert "--array=0-1\n" in script.read_text()
    (results.of("encode-1") / "vectors").mkdir()
    assert task(script, 0, shell) == 0
    (script,) = execution.write_scripts(steps, results, {}, ["mylmk"])
    assert "--array=0-0\n" in script.read_text()


def test_each_array_waits_for_the_previous_one(
    tmp_path: Path, shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", shell["PATH"])
    folder = tmp_path / "results"
    (folder / "slurm").mkdir(parents=True)
    scripts = [folder / "slurm" / f"{verb}.sh" for verb in ("encode", "search")]
    assert execution.submit(scripts, folder) == {"encode": "1", "search": "2"}
    assert (tmp_path / "submitted").read_text().splitlines() == [
        f"--parsable {scripts[0]}",
        f"--parsable --dependency=afterany:1 {scripts[1]}",
    ]
    assert execution.queued_tasks(folder) == ["1_0", "2_3"]
    assert execution.queued_tasks(tmp_path) == []


def test_without_slurm_the_error_names_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "slurm").mkdir()
    script = tmp_path / "slurm" / "encode.sh"
    with pytest.raises(DataError, match=rf"sbatch is missing.*written: {script}"):
        execution.submit([script], tmp_path)


def test_an_error_of_slurm_tells_what_was_submitted_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(
        '#!/bin/bash\ncase "$*" in *search*) echo "fatal: no partition" >&2; exit 1;; esac\necho 7\n'
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "slurm").mkdir()
    scripts = [tmp_path / "slurm" / f"{verb}.sh" for verb in ("encode", "search")]
    with pytest.raises(DataError) as refused:
        execution.submit(scripts, tmp_path)
    lines = str(refused.value).splitlines()
    assert lines[0].endswith("fatal: no partition")
    assert (
        lines[1]
        == f"submitted: encode (job 7); the scripts are written: {scripts[0]}, {scripts[1]}"
    )


INJECTED = "x\ntouch owned\n#"


@pytest.mark.parametrize(
    ("source", "options", "named"),
    [
        ("a", {"": {INJECTED: "1"}}, "[slurm]"),
        ("a", {"": {"time": INJECTED}}, "[slurm] time"),
        ("a", {"encode": {"gres": "gpu:1\r"}}, "[slurm.encode] gres"),
        ("a", {"search": {"time=1 --wrap": "1"}}, "[slurm.search]"),
        ("a", {"": {"setup": "A=1\x1b"}}, "[slurm] setup"),
        (INJECTED, {}, "the command of encode-1"),
    ],
)
def test_no_text_adds_a_line_to_a_script(
    tmp_path: Path, source: str, options: dict[str, dict[str, str]], named: str
) -> None:
    results = ResultsFolder(tmp_path / "results")
    steps = {"encode-1": GridStep("encode-1", Encode(source, model="m"))}
    with pytest.raises(UsageError) as refused:
        execution.write_scripts(steps, results, options, ["mylmk"])
    assert str(refused.value).startswith(named)
    assert "\n" not in str(refused.value)
    assert not results.folder.exists()


@pytest.mark.parametrize("where", ["results", "cwd"])
def test_no_folder_adds_a_line_to_a_script(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "x\ntouch owned"
    odd.mkdir()
    if where == "cwd":
        monkeypatch.chdir(odd)
    results = ResultsFolder(tmp_path / "r" if where == "cwd" else odd)
    steps = {"encode-1": GridStep("encode-1", Encode("a", model="m"))}
    with pytest.raises(UsageError, match="control character"):
        execution.write_scripts(steps, results, {}, ["mylmk"])


def test_the_setup_may_have_several_lines(tmp_path: Path, shell: dict[str, str]) -> None:
    results = ResultsFolder(tmp_path / "100%")
    steps = {"encode-1": GridStep("encode-1", Encode("a", model="m"))}
    setup = "export MYLMK=mylmk\n\tcd ."
    (script,) = execution.write_scripts(steps, results, {"": {"setup": setup}}, ["mylmk"])
    assert f"\n{setup}\n" in script.read_text()
    assert f"#SBATCH --output={tmp_path}/100%%/slurm/encode-%a.log\n" in script.read_text()
    assert task(script, 0, shell) == 0
