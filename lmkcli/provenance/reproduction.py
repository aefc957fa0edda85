"""Comparison of a recorded step with its reproduction, and the reasons for differences."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from lmkcli.artifact import manifest, outputs
from lmkcli.artifact.kinds import Facts, OpenMapping, RunManifest, VectorsManifest, plain
from lmkcli.data.run import Ranking, read_run
from lmkcli.encoding.verification import TOLERANCE
from lmkcli.errors import LmkError
from lmkcli.provenance import lineage
from lmkcli.provenance.lineage import LineageStep
from lmkcli.provenance.scorelog import RepeatableEntry
from lmkcli.vectors.stored import Vectors

MATRIX = 1 << 20  # numbers in memory: vectors are compared as rows of a matrix

_SHOWN = 12  # digits of a digest
# Fields of an identity that describe inputs; the steps of the inputs compare them.
_CHAINED = {"run": {"index", "queries"}, "index": {"recipe"}}


class ReproRow(NamedTuple):
    """One comparison: the recorded value, the current value, whether they are equal, and the reason.

    `same` is None if they cannot be compared. Then the comparison of the following steps shows the result.
    """

    what: str
    recorded: str
    now: str
    same: bool | None
    why: str = ""


def compare(then: LineageStep, now: LineageStep, tolerance: float) -> list[ReproRow]:
    """Compare the documents, models, queries, settings and contents of a step.

    Scores of a run may differ by `tolerance`. Vectors may differ by the rounding of their dtype.
    """
    rows = [*_documents(then, now), *_models(then, now), *_queries(then, now)]
    rows += _settings(then, now)
    contents = _contents(then, now, tolerance)
    if contents.same is False and all(row.same is not False for row in rows):
        contents = contents._replace(why=f"{contents.why}; {_suspects(then, now)}")
    return [*rows, contents]


def _documents(then: LineageStep, now: LineageStep) -> Iterator[ReproRow]:
    if not then.collection:
        return
    before, after = then.collection.split(":")[0], now.collection.split(":")[0]
    why = f"the collection has changed: {before} documents then, {after} now"
    if before == after:
        why = f"the collection has changed: as many documents ({before}), but not the same texts"
    yield _digests(f"documents of {then.source}", then.collection, now.collection, why)


def _models(then: LineageStep, now: LineageStep) -> Iterator[ReproRow]:
    """Rows for each model of the recipe; two sides with the same model are compared once."""
    recorded, made = then.made, now.made
    if not isinstance(recorded, VectorsManifest) or not isinstance(made, VectorsManifest):
        return
    seen = set()
    for before, after in zip(recorded.recipe.sides, made.recipe.sides, strict=True):
        name = before.model
        if name in seen or not before.weights:  # imported vectors may have no model
            continue
        seen.add(name)
        why = f"{name} is another model: its weights have changed"
        yield _digests(f"weights of {name}", before.weights, after.weights, why)
        if before.tokenizer != after.tokenizer:
            why = f"{name} is another model: its tokenizer has changed"
            yield _digests(f"tokenizer of {name}", before.tokenizer, after.tokenizer, why)


def _queries(then: LineageStep, now: LineageStep) -> Iterator[ReproRow]:
    """Rows for the queries of a run, and for the texts of a reranked run."""
    recorded, made = then.made, now.made
    if not isinstance(recorded, RunManifest) or not isinstance(made, RunManifest):
        return
    before, after = recorded.identity.queries, made.identity.queries
    yield _digests(f"queries of {then.source}", before, after, "the queries have changed")
    before, after = (each.identity.search.get("texts", "") for each in (recorded, made))
    if before and after:
        why = "the collection has changed: the documents of the run have other texts"
        yield _digests(f"documents of {then.source}", before, after, why)


def _digests(what: str, before: str, after: str, why: str) -> ReproRow:
    same = before == after
    return ReproRow(what, _short(before), _short(after), same, "" if same else why)


def _short(digest: str) -> str:
    return digest.rpartition(":")[2][:_SHOWN]


def _settings(then: LineageStep, now: LineageStep) -> Iterator[ReproRow]:
    """Rows for differing settings only, such as a default that differs between versions."""
    for line in manifest.json_differences(_own(then), _own(now)):
        name, _, values = line.partition(": ")
        before, _, after = values.partition(" | ")
        why = f"{name} has changed; {_suspects(then, now)}"
        yield ReproRow(f"{then.made.kind}: {name}", before, after, False, why)


def _own(step: LineageStep) -> OpenMapping:
    """Return the identity without the fields that other rows compare."""
    chained = _CHAINED.get(step.made.kind, set())
    identity: OpenMapping = plain(step.made.identity)
    kept = {key: value for key, value in identity.items() if key not in chained}
    if step.made.kind == "vectors":
        recipe = {side: dict(fields) for side, fields in kept["recipe"].items()}
        for fields in recipe.values():
            del fields["weights"], fields["tokenizer"]
        kept["recipe"] = recipe
    if step.made.kind == "tokens":
        del kept["tokenizer"]
    if step.made.kind == "run":
        kept["search"] = {key: value for key, value in kept["search"].items() if key != "texts"}
    return kept


def _contents(then: LineageStep, now: LineageStep, tolerance: float) -> ReproRow:
    what = f"{then.made.kind} {Path(then.path).name}"
    if then.digest == now.digest:
        return ReproRow(what, _short(then.digest), _short(now.digest), True)
    row = ReproRow(what, _short(then.digest), _short(now.digest), None)
    if then.made.kind == "model":
        return row._replace(same=False, why=_weights(Path(then.path), Path(now.path)))
    if then.made.kind not in ("vectors", "run"):
        return row._replace(
            why=f"the digests differ, and lmk cannot compare artifacts of kind '{then.made.kind}' by value"
        )
    if not _unchanged(then):
        return row._replace(why="the recorded artifact is missing or has changed")
    if then.made.kind == "vectors":
        return _vectors(row, then, now)
    return _rankings(row, Path(then.path), Path(now.path), tolerance)


def _weights(one: Path, other: Path) -> str:
    """Return the largest difference between the weights of two models, in words."""
    try:
        before, after = (_arrays(path) for path in (one, other))
    except (OSError, SafetensorError) as error:
        return f"the weights cannot be read: {error}"
    if {n: v.shape for n, v in before.items()} != {n: v.shape for n, v in after.items()}:
        return "the names or shapes of the weights differ"
    gaps = {name: float(np.abs(before[name] - after[name]).max()) for name in before}
    worst = max(gaps, key=lambda name: gaps[name])
    return (
        f"weights differ by at most {gaps[worst]:.2g}, in {worst} (only training in fp32 in one process "
        "on a CPU is reproducible to the last bit)"
    )


def _arrays(path: Path) -> dict[str, NDArray[np.float32]]:
    files = sorted(path.glob("model*.safetensors"))
    return {name: array for file in files for name, array in load_file(file).items()}


def _unchanged(step: LineageStep) -> bool:
    """Return whether the recorded artifact still exists with the recorded contents."""
    path = Path(step.path)
    if not (path.exists() and outputs.is_artifact(path)):
        return False
    try:
        return lineage.read(path).digest == step.digest
    except LmkError:
        return False


def _vectors(row: ReproRow, then: LineageStep, now: LineageStep) -> ReproRow:
    """Compare vectors by cosine and document, as the ranges of the parts may differ."""
    least = least_cosine(Vectors(Path(then.path)), Vectors(Path(now.path)))
    if least is None:
        return row._replace(
            same=False, why="the documents, or the numbers of vectors of a document, differ"
        )
    assert isinstance(then.made, VectorsManifest)
    wanted = TOLERANCE[then.made.execution.dtype]
    why = f"least cosine {least:.6f} (at least {wanted} wanted)"
    return row._replace(now=f"cosine {least:.6f}", same=least >= wanted, why=why)


def least_cosine(one: Vectors[Any], other: Vectors[Any]) -> float | None:
    """Return the least cosine between the vectors of two artifacts, paired by document and order.

    None if the documents or their numbers of vectors differ.
    """
    rows = other.numbers()
    names = one.numbers()
    if rows.keys() != names.keys():
        return None
    least = 1.0
    ids = list(names)
    size = max(1, min(1000, MATRIX // max(1, one.dim)))
    for start, stop in pairwise([*range(0, len(ids), size), len(ids)]):
        mine = one.at(np.array([names[name] for name in ids[start:stop]], np.int64))
        theirs = other.at(np.array([rows[name] for name in ids[start:stop]], np.int64))
        if one.dim != other.dim or not np.array_equal(mine.counts, theirs.counts):
            return None
        least = min(least, _cosine(mine.matrix(), theirs.matrix()))
    return least


def _cosine(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Return the least cosine between rows i of two matrices [n, dim]; of equal rows, also zeros, it is 1."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    dots = np.einsum("ij,ij->i", one, other)
    equal = (one == other).all(axis=1)
    return float(np.min(np.where(equal, 1.0, dots / np.where(lengths > 0, lengths, 1.0))))


def _rankings(row: ReproRow, one: Path, other: Path, tolerance: float) -> ReproRow:
    before, after = read_run(one).rankings, read_run(other).rankings
    empty = Ranking([], np.zeros(0, np.float32))
    gaps = {q: gap(before.get(q, empty), after.get(q, empty)) for q in before.keys() | after.keys()}
    odd = sorted(query for query, value in gaps.items() if value > tolerance)
    if not odd:
        return row._replace(same=True, why=f"scores differ by at most {max(gaps.values()):.2g}")
    why = f"{len(odd)} of {len(gaps)} queries have other rankings ({', '.join(odd[:3])} …)"
    return row._replace(same=False, why=why)


def gap(one: Ranking, other: Ranking) -> float:
    """Return the largest difference of scores between two rankings of one query, by rank and by document.

    If a document is missing in one ranking, the last score of that ranking is used.
    """
    if len(one.doc_ids) != len(other.doc_ids):
        return float("inf")
    if not one.doc_ids:
        return 0.0
    by_rank = float(np.abs(one.scores - other.scores).max())
    others = dict(zip(other.doc_ids, other.scores.tolist(), strict=True))
    last = float(other.scores[-1])
    pairs = zip(one.doc_ids, one.scores.tolist(), strict=True)
    return float(max(by_rank, *(abs(score - others.get(doc, last)) for doc, score in pairs)))


def scores(then: RepeatableEntry, now: RepeatableEntry, tolerance: float) -> list[ReproRow]:
    """Compare the judgements and the measures of two entries of a log."""
    before, after = then["qrels_digest"], now["qrels_digest"]
    rows = [_digests("qrels", before, after, "the judgements have changed")]
    for name, value in then["scores"].items():
        again = now["scores"].get(name, float("nan"))
        same = abs(again - value) <= tolerance
        why = "" if same else f"{name} differs by {again - value:+.4g}"
        rows.append(ReproRow(name, f"{value:.6f}", f"{again:.6f}", same, why))
    return rows


def versions(then: Facts, now: Facts) -> list[str]:
    """Return the software with another version: 'torch 2.12.0 then, 2.13.0 now'."""

    def flat(facts: Facts) -> dict[str, str]:
        return {"lmk": facts.lmk, "Python": facts.python, **facts.packages}

    before, after = flat(then), flat(now)
    return [
        f"{name} {before.get(name, 'absent')} then, {after.get(name, 'absent')} now"
        for name in before | after
        if before.get(name) != after.get(name)
    ]


def _suspects(then: LineageStep, now: LineageStep) -> str:
    """Possible reasons for a difference that the recorded inputs do not explain."""
    changed = versions(then.made.facts, now.made.facts)
    if changed:
        return "; ".join(["library versions differ", *changed])
    lines = manifest.json_differences(then.made.facts.machine, now.made.facts.machine)
    recorded, made = then.made, now.made
    if isinstance(recorded, VectorsManifest) and isinstance(made, VectorsManifest):
        lines += manifest.json_differences(recorded.execution.attention, made.execution.attention)
    if lines:
        return "; ".join(["the machine differs (then | now)", *lines])
    return "the versions and the machine are the same, so nothing recorded explains it"


def first_difference(rows: Iterable[ReproRow]) -> ReproRow | None:
    """Return the first row with a difference, in the order of the steps."""
    return next((row for row in rows if row.same is False), None)
