"""`lmk grid` beside the same commands typed one by one; and one that is killed beside one that is not.

    python benchmarks/grid.py overhead --repeats 3       # 3 collections x 4 poolers x 2 lengths, MiniLM
    python benchmarks/grid.py kills --times 5            # the same grid, killed at random moments
    python benchmarks/grid.py overhead grid.toml         # another grid

The default needs the extra demo and nothing else. `overhead` runs grid and commands in turn, alternating
which comes first, and compares their runs; `kills` leaves with code 1 where the two tables differ.
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
ENDED = "ended after "  # as the log of a step has it, before its seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["overhead", "kills"])
    parser.add_argument("file", nargs="?", type=Path, help="a grid; else the one above")
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
        if args.what == "overhead":
            overhead(args.file, folder, args.repeats)
        else:
            kills(args.file, folder, args.times, random.Random(args.seed))


def overhead(file: Path, folder: Path, repeats: int) -> None:
    """Prints how much longer the grid takes than its commands, and what it spends outside of them."""
    ratios, shares = [], []
    for number in range(repeats):
        grid, bare = folder / f"grid-{number}", folder / f"bare-{number}"
        seconds = {}
        for place in (grid, bare) if number % 2 == 0 else (bare, grid):
            seconds[place] = whole(file, place) if place is grid else typed(file, place)
        same(grid, bare)
        inside = sum(made(grid).values())
        ratios.append(seconds[grid] / seconds[bare] - 1)
        shares.append(seconds[grid] / inside - 1)
        print(
            f"grid {seconds[grid]:.1f} s, of these {inside:.1f} s in its commands; "
            f"typed one by one {seconds[bare]:.1f} s"
        )
    print(f"overhead over the bare commands: {statistics.median(ratios):.1%} (median of {repeats})")
    print(f"overhead over the work inside them, without starting: {statistics.median(shares):.1%}")


def whole(file: Path, folder: Path) -> float:
    """Seconds of the grid."""
    start = time.perf_counter()
    subprocess.run(
        [*LMK, "-q", "grid", file, "-o", folder, "--json"], check=True, capture_output=True
    )
    return time.perf_counter() - start


def typed(file: Path, folder: Path) -> float:
    """Seconds of its commands, each a process of its own."""
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
    """Leaves with a message where a run differs."""
    runs = [path.relative_to(grid) for path in grid.glob("steps/*/run.trec")]
    odd = [str(run) for run in runs if not filecmp.cmp(grid / run, bare / run, shallow=False)]
    if odd or not runs:
        sys.exit(f"the runs of grid and commands differ: {odd or 'there are none'}")


def made(folder: Path) -> dict[str, float]:
    """Step -> seconds of its lives that ended well, which is one."""
    seconds = {}
    for log in folder.glob("steps/*/log.txt"):
        ended = [line for line in log.read_text(errors="replace").splitlines() if ENDED in line]
        if len(ended) != 1:
            sys.exit(f"{log}: {len(ended)} lives ended well, not one")
        seconds[log.parent.name] = float(ended[0].removeprefix(ENDED).removesuffix(" s"))
    return seconds


def kills(file: Path, folder: Path, times: int, chance: random.Random) -> None:
    """Runs the grid twice, once killed `times` times, by SIGKILL and SIGTERM in turn, each further on."""
    whole(file, folder / "undisturbed")
    expected, killed = made(folder / "undisturbed"), folder / "killed"
    for number in range(times):
        more = chance.randint(0, len(expected) // (times + 1))
        run = subprocess.Popen(
            [*LMK, "-q", "grid", file, "-o", killed, "-j", "2"],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        done = finished(killed)
        while run.poll() is None and finished(killed) < done + more:
            time.sleep(0.02)
        time.sleep(chance.random() * statistics.fmean(expected.values()))
        if number % 2:
            run.terminate()
        elif run.poll() is None:  # with all of its commands, as when a machine goes down
            os.killpg(run.pid, signal.SIGKILL)
        code = run.wait()
        print(f"life {number + 1}: exit code {code}, {finished(killed)} of {len(expected)} steps")
    whole(file, killed)
    if made(killed).keys() != expected.keys():
        sys.exit("the grid that was killed has other steps")
    compare(scores(file, folder / "undisturbed"), scores(file, killed))
    print(f"the same table; {len(expected)} steps, each ended well once")


def finished(folder: Path) -> int:
    """Steps that have ended well."""
    return len(list(folder.glob("steps/*/result.json")))


def scores(file: Path, folder: Path) -> dict[str, float]:
    """Cell and measure -> score."""
    done = subprocess.run(
        [*LMK, "-q", "grid", file, "-o", folder, "--json"], check=True, capture_output=True
    )
    return {f"{row['cell']} {row['measure']}": row["score"] for row in json.loads(done.stdout)}


def compare(expected: dict[str, float], found: dict[str, float]) -> None:
    """Leaves with what differs: batches that were cut elsewhere may move a vector by 1e-6, no more."""
    odd = [
        name
        for name in {*expected, *found}
        if abs(expected.get(name, 9) - found.get(name, 8)) > 1e-4
    ]
    if odd:
        sys.exit(f"the tables differ: {', '.join(sorted(odd))}")


if __name__ == "__main__":
    main()
