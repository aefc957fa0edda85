"""Which runs the words of `lmk eval` name, and which judgements each of them is held against."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lmkcli.errors import DataError, UsageError

if TYPE_CHECKING:
    from lmkcli.evaluation.results import Result


def order(runs: list[Path], qrels: list[str]) -> tuple[list[Path], list[str]]:
    """The runs, and one spelling of qrels for each or none at all.

    trec_eval's order, qrels first, is recognised by their four columns. One run may come twice only
    with judgements of its own each time.
    """
    runs = [run for path in runs for run in _runs_in(path)]
    missing = [str(path) for path in runs if not path.is_file()]
    if missing:
        meant = [name for name in missing if "@" in name]
        advice = f"; a measure has its own flag: -m {meant[0]}" if meant else ""
        raise DataError(f"no such run: {', '.join(missing)}{advice}")
    if not qrels and len(runs) > 1 and _columns(runs[0]) in (3, 4):
        runs, qrels = runs[1:], [str(runs[0])]
    if _columns(runs[0]) in (3, 4):
        raise UsageError(f"{runs[0]} looks like qrels, not like a run; give a run after it")
    twice = [str(run) for run in dict.fromkeys(runs) if runs.count(run) > 1]
    if twice and len(qrels) <= 1:
        raise UsageError(f"{', '.join(twice)}: given twice; give each run once")
    return runs, qrels * len(runs) if len(qrels) == 1 else qrels


def named(results: "list[Result]", names: list[str] | None, program: bool) -> "list[Result]":
    """The results with their rows named: as --name says, else, for people and one collection, shortly."""
    from lmkcli.evaluation.results import collections_of, row_names
    from lmkcli.evaluation.scoring import given_tag

    runs = [each.run for each in results]
    if names:
        cells = [(name, each.collection) for name, each in zip(names, results, strict=True)]
        if len(set(cells)) < len(cells):
            raise UsageError("two runs on one collection have the same --name; give each its own")
    elif program or len(collections_of(results)) > 1:
        return results
    else:
        names = row_names(runs, list(map(given_tag, runs)))
    return [replace(each, system=name) for each, name in zip(results, names, strict=True)]


def _runs_in(path: Path) -> list[Path]:
    """A folder's runs, known by the manifests beside them, by name; a file itself."""
    from lmkcli.store.outputs import SIDECAR, sidecar

    if not path.is_dir():
        return [path]
    runs = sorted(each for each in path.iterdir() if sidecar(each).is_file())
    if not runs:
        raise DataError(f"{path}: no run with its manifest (<run>{SIDECAR}) in this folder")
    return runs


def _columns(path: Path) -> int:
    import gzip
    import zlib

    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", errors="replace") as file:
            return len(next((line for line in file if line.strip()), "").split())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
