"""SLURM: the missing steps of a plan as arrays of jobs, one array a command, each after the one before.

A task runs one command (of a sharded encoding, one shard) as a shell line that can be read in its script,
and leaves its result where a grid that runs by itself would, under the same lock: the state is the folder,
and what is missing is submitted again.
"""

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmkcli.errors import DataError
from lmkcli.experiments.running import ENDED, LOCK, LOG, Results
from lmkcli.experiments.steps import OUTPUTS, Step
from lmkcli.reading import read_json
from lmkcli.system.atomic import atomic_file

FOLDER, JOBS = "slurm", "jobs.json"  # in that of the results
_OURS = ("shards", "setup")  # of a table [slurm.encode], what is no option of sbatch
_DEFAULTS = {"signal": "USR1@120", "open-mode": "append"}
_SCRIPT = """\
#!/bin/bash
{options}
#SBATCH --requeue
cd {directory} || exit 1
{setup}
unset "${{!LMK_{variables}_@}}"  # as where a grid runs by itself, variables for flags do not count
# KEY RESULT COMMAND…: one command, its output to RESULT when it has ended well; 75 queues it again
run() {{
  folder={steps}/$1 result=$2; shift 2
  mkdir -p "$folder"
  exec 9>> "$folder/$result{lock}"
  flock 9  # while another task, or a grid without SLURM, makes the same
  [ -e "$folder/$result" ] && exit 0
  echo "\\$ lmk ${{*:{words}}}" >> "$folder/{log}"; SECONDS=0
  srun "$@" > "$folder/.$result.$SLURM_JOB_ID" 2>> "$folder/{log}"
  code=$?
  if [ $code = 0 ]; then
    echo "{ended}$SECONDS s" >> "$folder/{log}"
    mv "$folder/.$result.$SLURM_JOB_ID" "$folder/$result"
  else rm -f "$folder/.$result.$SLURM_JOB_ID"; fi
  if [ $code = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
  exit $code
}}
case "$SLURM_ARRAY_TASK_ID" in
{cases}
esac
"""


def write(
    steps: Mapping[str, Step],
    results: Results,
    options: Mapping[str, Mapping[str, str]],
    program: Sequence[str],
) -> list[Path]:
    """A batch script for each command that is to run, in the order in which they follow each other.

    `options` has, by command and under '' for all, options of sbatch, and `setup`: shell lines that come
    first.
    """
    folder = results.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    results.forget(steps.values())
    scripts = []
    for verb in OUTPUTS:
        mine = [step for step in steps.values() if step.verb == verb]
        if mine:
            scripts.append(folder / f"{verb}.sh")
            text = _script(mine, results, {**options.get("", {}), **options.get(verb, {})}, program)
            with atomic_file(scripts[-1]) as temporary:
                temporary.write_text(text, encoding="utf-8")
    return scripts


def _script(
    steps: Sequence[Step], results: Results, options: Mapping[str, str], program: Sequence[str]
) -> str:
    verb = steps[0].verb
    commands = [
        shlex.join([step.key, name, *program, *operation.words(), "--json"])
        for step in steps
        for name, operation in step.operations()
        if not (results.of(step.key) / name).exists()
    ]
    asked = {
        "job-name": f"lmk-{verb}",
        "array": f"0-{len(commands) - 1}",
        "output": str((results.folder / FOLDER / f"{verb}-%a.log").absolute()),
        **_DEFAULTS,
        **{name: value for name, value in options.items() if name not in _OURS},
    }
    return _SCRIPT.format(
        options="\n".join(f"#SBATCH --{name}={shlex.quote(text)}" for name, text in asked.items()),
        variables=verb.upper(),
        directory=shlex.quote(str(Path.cwd())),
        setup=options.get("setup", ""),
        steps=shlex.quote(str(results.of("").absolute())),
        words=len(program) + 1,
        log=LOG,
        lock=LOCK,
        ended=ENDED,
        cases="\n".join(f"{number}) run {line} ;;" for number, line in enumerate(commands)),
    )


def submit(scripts: Sequence[Path], folder: Path) -> dict[str, str]:
    """Submit scripts, each after all tasks of the one before, whatever came of them; command -> job.

    DataError with sbatch's own words where it refuses one.
    """
    jobs: dict[str, str] = {}
    for script in scripts:
        after = [f"--dependency=afterany:{list(jobs.values())[-1]}"] if jobs else []
        jobs[script.stem] = _asked(["sbatch", "--parsable", *after, str(script)]).partition(";")[0]
        with atomic_file(folder / FOLDER / JOBS) as temporary:
            temporary.write_text(json.dumps(jobs), encoding="utf-8")
    return jobs


def queued(folder: Path) -> list[str]:
    """The tasks of the last submission that are not over, as job_task."""
    file = folder / FOLDER / JOBS
    if not file.is_file():
        return []
    jobs = read_json(file, dict[str, str], "remove it when no job of this grid is queued")
    mine = set(jobs.values())
    lines = _asked(["squeue", "-h", "-r", "-o", "%i"]).split()
    return [line for line in lines if line.partition("_")[0] in mine]


def _asked(words: Sequence[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise DataError(
            f"there is no {words[0]} here; run the same command where SLURM is, or without --slurm"
        ) from None
    if done.returncode:
        raise DataError(f"{shlex.join(words)}: {done.stderr.strip() or 'failed'}")
    return done.stdout.strip()
