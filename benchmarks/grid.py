"""Compare `lmk grid` with the same commands one by one, and a killed grid with an undisturbed one.

    python benchmarks/grid.py overhead --repeats 3       # 3 collections x 4 poolers x 2 lengths, MiniLM
    python benchmarks/grid.py kills --times 5            # the same grid, killed at random moments
    python benchmarks/grid.py overhead grid.toml         # another grid

The default needs only the extra demo. `overhead` runs the grid and the commands alternately, each first in
every second round, and compares their runs. `kills` exits with code 1 if the two tables differ.
"""

import argparse
import filecmp
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LMK = [sys.executable, "-m", "lmkcli.cli.main"]
GRID = """
[grid]
collections = ["stdlib/functions,package=email+http+json", "python/rich/functions", "python/click/functions"]
model = "minilm"
pool = ["cls", "last", "mean", "lmk"]
gran = [""]
max-length = [64, 256]
dtype = "fp32"
measures = ["nDCG@10", "R@100"]
[[grid.where]]
pool = "lmk"
gran = [32]
"""
JOBS = 2  # steps at a time in a grid that is killed
ENDED = "ended after "  # a step's log has this text before the seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mode", choices=["overhead", "kills"])
    parser.add_argument("file", nargs="?", type=Path, help="a grid file; default: GRID above")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="keep the results here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if args.file is None:
            args.file = folder / "grid.toml"
            args.file.write_text(GRID, encoding="utf-8")
        if args.mode == "overhead":
            overhead(args.file, folder, args.repeats)
        else:
            kills(args.file, folder, args.times, random.Random(args.seed))


def overhead(file: Path, folder: Path, repeats: int) -> None:
    """Print how much longer the grid takes than its commands, and the time that it spends outside them."""
    ratios, shares = [], []
    for number in range(repeats):
        grid, bare = folder / f"grid-{number}", folder / f"bare-{number}"
        seconds = {}
        for place in (grid, bare) if number % 2 == 0 else (bare, grid):
            seconds[place] = run_grid(file, place) if place is grid else run_commands(file, place)
        same(grid, bare)
        inside = sum(step_seconds(grid).values())
        ratios.append(seconds[grid] / seconds[bare] - 1)
        shares.append(seconds[grid] / inside - 1)
        print(
            f"grid {seconds[grid]:.1f} s, of these {inside:.1f} s in its commands; "
            f"one by one {seconds[bare]:.1f} s"
        )
    print(f"overhead over the bare commands: {statistics.median(ratios):.1%} (median of {repeats})")
    print(f"overhead over the work inside them, without start-up: {statistics.median(shares):.1%}")


def run_grid(file: Path, folder: Path) -> float:
    """Run the grid and return its seconds."""
    start = time.perf_counter()
    subprocess.run(
        [*LMK, "-q", "grid", file, "-o", folder, "--json"], check=True, capture_output=True
    )
    return time.perf_counter() - start


def run_commands(file: Path, folder: Path) -> float:
    """Run the commands of the grid one by one, each in a separate process, and return their seconds."""
    planned = subprocess.run(
        [*LMK, "-q", "grid", file, "-o", folder, "--dry-run", "--json"],
        check=True,
        capture_output=True,
    )
    steps = json.loads(planned.stdout)["steps"]
    start = time.perf_counter()
    for step in steps:
        (folder / "steps" / step["key"]).mkdir(parents=True)
        words = shlex.split(step["command"])[1:]
        subprocess.run([*LMK, "-q", *words], check=True, capture_output=True)
    return time.perf_counter() - start


def same(grid: Path, bare: Path) -> None:
    """Exit with a message if a run differs."""
    runs = [path.relative_to(grid) for path in grid.glob("steps/*/run.trec")]
    odd = [str(run) for run in runs if not filecmp.cmp(grid / run, bare / run, shallow=False)]
    if odd or not runs:
        sys.exit(f"the runs of grid and commands differ: {odd or 'the grid has no run'}")


def step_seconds(folder: Path, repeatable: int = 0) -> dict[str, float]:
    """Map each step to its seconds; exit with a message unless each step succeeded once.

    `repeatable` steps may succeed again: after a SIGKILL between the last line of a log and the result file,
    the step runs again, and finds its output complete.
    """
    seconds = {}
    for log in folder.glob("steps/*/log.txt"):
        ended = [line for line in log.read_text(errors="replace").splitlines() if ENDED in line]
        repeatable -= len(ended) - 1
        if not ended or repeatable < 0:
            sys.exit(f"{log}: the step succeeded {len(ended)} times, expected one")
        seconds[log.parent.name] = float(ended[0].removeprefix(ENDED).removesuffix(" s"))
    return seconds


def kills(file: Path, folder: Path, times: int, rng: random.Random) -> None:
    """Run the grid twice, once with `times` kills (SIGKILL and SIGTERM in turn, each at a later step)."""
    run_grid(file, folder / "undisturbed")
    expected, killed = step_seconds(folder / "undisturbed"), folder / "killed"
    sigkills = 0
    for number in range(times):
        more = rng.randint(0, len(expected) // (times + 1))
        run = subprocess.Popen(
            [*LMK, "-q", "grid", file, "-o", killed, "-j", str(JOBS)],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        done = finished(killed)
        while run.poll() is None and finished(killed) < done + more:
            time.sleep(0.02)
        time.sleep(rng.random() * statistics.fmean(expected.values()))
        if number % 2:
            run.terminate()
        elif run.poll() is None:  # kill all of its commands too, as when a machine goes down
            os.killpg(run.pid, signal.SIGKILL)
        code = run.wait()
        sigkills += code == -signal.SIGKILL
        print(f"start {number + 1}: exit code {code}, {finished(killed)} of {len(expected)} steps")
    run_grid(file, killed)
    if step_seconds(killed, JOBS * sigkills).keys() != expected.keys():
        sys.exit("the steps of the killed grid differ from those of the undisturbed one")
    compare(scores(file, folder / "undisturbed"), scores(file, killed))
    print(f"the same table; {len(expected)} steps")


def finished(folder: Path) -> int:
    """Count the finished steps."""
    return len(list(folder.glob("steps/*/result.json")))


def scores(file: Path, folder: Path) -> dict[str, float]:
    """Map cell and measure to the score."""
    done = subprocess.run(
        [*LMK, "-q", "grid", file, "-o", folder, "--json"], check=True, capture_output=True
    )
    return {f"{row['cell']} {row['measure']}": row["score"] for row in json.loads(done.stdout)}


def compare(expected: dict[str, float], found: dict[str, float]) -> None:
    """Exit with the differing scores: other batch boundaries may change a vector by at most 1e-6."""
    odd = [
        name
        for name in {*expected, *found}
        if abs(expected.get(name, 9) - found.get(name, 8)) > 1e-4
    ]
    if odd:
        sys.exit(f"the tables differ: {', '.join(sorted(odd))}")


if __name__ == "__main__":
    main()
