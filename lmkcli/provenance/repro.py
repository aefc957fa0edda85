"""Repro: a recorded step and the same step made again, side by side, and why they differ."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from lmkcli import manifest
from lmkcli.data.run import Ranking, read_run
from lmkcli.encoding.verifying import TOLERANCE
from lmkcli.errors import LmkError
from lmkcli.provenance import lineage
from lmkcli.provenance.lineage import Step
from lmkcli.store import outputs
from lmkcli.store.vectors import Vectors

_SHOWN = 12  # digits of a digest
# What an identity says of the artifacts it was made from; their own rows compare those.
_CHAINED = {"run": {"index", "queries"}, "index": {"recipe"}}


class Row(NamedTuple):
    """One comparison: what was recorded, what is now, whether that is the same, and if not, why.

    `same` is None where nothing can be said: what follows from it decides.
    """

    what: str
    recorded: str
    now: str
    same: bool | None
    why: str = ""


def compare(then: Step, now: Step, tolerance: float) -> list[Row]:
    """All that can be compared of a step: its documents, its model, its settings, what it holds.

    Scores of a run may differ by `tolerance`, vectors by what rounding in their dtype explains.
    """
    rows = [*_documents(then, now), *_models(then, now), *_queries(then, now)]
    rows += _settings(then, now)
    contents = _contents(then, now, tolerance)
    if contents.same is False and all(row.same is not False for row in rows):
        contents = contents._replace(why=f"{contents.why}; {_suspects(then, now)}")
    return [*rows, contents]


def _documents(then: Step, now: Step) -> Iterator[Row]:
    if not then.collection:
        return
    before, after = then.collection.split(":")[0], now.collection.split(":")[0]
    why = f"the collection has changed: {before} documents then, {after} now"
    if before == after:
        why = f"the collection has changed: as many documents ({before}), but not the same texts"
    yield _digests(f"documents of {then.source}", then.collection, now.collection, why)


def _models(then: Step, now: Step) -> Iterator[Row]:
    """A row a model of the recipe; two sides with one model are one."""
    if then.kind != "vectors":
        return
    seen = set()
    for side in ("doc", "query"):
        name = str(then.facts["models"][side]["model"])
        before, after = (step.identity["recipe"][side] for step in (then, now))
        if name in seen or not before["weights"]:  # imported vectors need not say what made them
            continue
        seen.add(name)
        for part in ("weights", "tokenizer"):
            why = f"{name} is another model: its {part} have changed"
            if part == "weights" or before[part] != after[part]:
                yield _digests(f"{part} of {name}", before[part], after[part], why)


def _queries(then: Step, now: Step) -> Iterator[Row]:
    """And the texts of them that a cross-encoder read to rerank a run."""
    if then.kind != "run":
        return
    before, after = then.identity["queries"], now.identity["queries"]
    yield _digests(f"queries of {then.source}", before, after, "the queries have changed")
    before, after = (step.identity["search"].get("texts", "") for step in (then, now))
    if before and after:
        why = "the collection has changed: the documents of the run have other texts"
        yield _digests(f"documents of {then.source}", before, after, why)


def _digests(what: str, before: str, after: str, why: str) -> Row:
    same = before == after
    return Row(what, _short(before), _short(after), same, "" if same else why)


def _short(digest: str) -> str:
    return digest.rpartition(":")[2][:_SHOWN]


def _settings(then: Step, now: Step) -> Iterator[Row]:
    """Rows only for what differs: a default that another version changed, an analysis."""
    for line in manifest.json_differences(_own(then), _own(now)):
        name, _, values = line.partition(": ")
        before, _, after = values.partition(" | ")
        why = f"{name} is not what it was; {_suspects(then, now)}"
        yield Row(f"{then.kind}: {name}", before, after, False, why)


def _own(step: Step) -> dict[str, Any]:
    """The identity without what other rows compare."""
    chained = _CHAINED.get(step.kind, set())
    kept = {key: value for key, value in step.identity.items() if key not in chained}
    if step.kind == "vectors":
        recipe = {side: dict(fields) for side, fields in kept["recipe"].items()}
        for fields in recipe.values():
            del fields["weights"], fields["tokenizer"]
        kept["recipe"] = recipe
    if step.kind == "tokens":
        del kept["tokenizer"]
    if step.kind == "run":
        kept["search"] = {key: value for key, value in kept["search"].items() if key != "texts"}
    return kept


def _contents(then: Step, now: Step, tolerance: float) -> Row:
    what = f"{then.kind} {Path(then.path).name}"
    if then.digest == now.digest:
        return Row(what, _short(then.digest), _short(now.digest), True)
    row = Row(what, _short(then.digest), _short(now.digest), None)
    if then.kind == "model":
        return row._replace(same=False, why=_weights(Path(then.path), Path(now.path)))
    if then.kind not in ("vectors", "run"):
        return row._replace(why=f"{then.kind} of another digest cannot be compared by value")
    if not _still_there(then):
        return row._replace(why="it is not there any more as it was recorded")
    if then.kind == "vectors":
        return _vectors(row, then, now)
    return _rankings(row, Path(then.path), Path(now.path), tolerance)


def _weights(one: Path, other: Path) -> str:
    """How far the weights of two models lie apart."""
    before, after = (_arrays(path) for path in (one, other))
    if {n: v.shape for n, v in before.items()} != {n: v.shape for n, v in after.items()}:
        return "they have other weights, by name or shape"
    gaps = {name: float(np.abs(before[name] - after[name]).max()) for name in before}
    worst = max(gaps, key=lambda name: gaps[name])
    return (
        f"weights differ by {gaps[worst]:.2g} at most, in {worst} (only fp32 in one process on a CPU "
        "is the same bit for bit)"
    )


def _arrays(path: Path) -> dict[str, NDArray[np.float32]]:
    files = sorted(path.glob("model*.safetensors"))
    return {name: array for file in files for name, array in load_file(file).items()}


def _still_there(step: Step) -> bool:
    path = Path(step.path)
    if not (path.exists() and outputs.is_artifact(path)):
        return False
    try:
        return lineage.read(path).digest == step.digest
    except LmkError:
        return False


def _vectors(row: Row, then: Step, now: Step) -> Row:
    """By cosine and document, as parts may be cut otherwise."""
    least = least_cosine(Vectors(Path(then.path)), Vectors(Path(now.path)))
    if least is None:
        return row._replace(
            same=False, why="they are of other documents, or not as many a document"
        )
    wanted = TOLERANCE[str(then.execution["dtype"])]
    said = f"least cosine {least:.6f} (at least {wanted} wanted)"
    return row._replace(now=f"cosine {least:.6f}", same=least >= wanted, why=said)


def least_cosine(one: Vectors, other: Vectors) -> float | None:
    """The least cosine between two artifacts' vectors of the same document; None if they do not pair."""
    rows = other.numbers()
    names = one.numbers()
    if rows.keys() != names.keys():
        return None
    least = 1.0
    ids = list(names)
    for start, stop in pairwise([*range(0, len(ids), 1000), len(ids)]):
        mine = one.at(np.array([names[name] for name in ids[start:stop]], np.int64))
        theirs = other.at(np.array([rows[name] for name in ids[start:stop]], np.int64))
        if mine.vectors.shape != theirs.vectors.shape or (mine.counts != theirs.counts).any():
            return None
        least = min(least, _cosine(mine.vectors, theirs.vectors))
    return least


def _cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """The least cosine of two matrices' rows; equal rows are alike, zeros too."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    dots = np.einsum("ij,ij->i", one, other)
    alike = (one == other).all(axis=1)
    return float(np.min(np.where(alike, 1.0, dots / np.where(lengths > 0, lengths, 1.0))))


def _rankings(row: Row, one: Path, other: Path, tolerance: float) -> Row:
    before, after = read_run(one).rankings, read_run(other).rankings
    empty = Ranking([], np.zeros(0, np.float32))
    gaps = {q: gap(before.get(q, empty), after.get(q, empty)) for q in before.keys() | after.keys()}
    odd = sorted(query for query, value in gaps.items() if value > tolerance)
    if not odd:
        return row._replace(same=True, why=f"scores differ by {max(gaps.values()):.2g} at most")
    why = f"{len(odd)} of {len(gaps)} queries are ranked otherwise ({', '.join(odd[:3])} …)"
    return row._replace(same=False, why=why)


def gap(one: Ranking, other: Ranking) -> float:
    """The largest difference of scores between two rankings of one query, by rank and by document.

    A document that one of them lacks counts with the last score of that one.
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


def scores(then: Mapping[str, Any], now: Mapping[str, Any], tolerance: float) -> list[Row]:
    """The judgements and the measures of two entries of a log."""
    before, after = str(then["qrels_digest"]), str(now["qrels_digest"])
    rows = [_digests("qrels", before, after, "the judgements have changed")]
    for name, value in then["scores"].items():
        again = now["scores"].get(name, float("nan"))
        same = abs(again - value) <= tolerance
        why = "" if same else f"{name} differs by {again - value:+.4g}"
        rows.append(Row(name, f"{value:.6f}", f"{again:.6f}", same, why))
    return rows


def versions(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Software that is not what it was: 'torch 2.12.0 then, 2.13.0 now'."""

    def flat(facts: Mapping[str, Any]) -> dict[str, str]:
        return {"lmk": facts["lmk"], "Python": facts["python"], **facts["packages"]}

    before, after = flat(then), flat(now)
    return [
        f"{name} {before.get(name, 'absent')} then, {after.get(name, 'absent')} now"
        for name in before | after
        if before.get(name) != after.get(name)
    ]


def _suspects(then: Step, now: Step) -> str:
    """What may explain a difference that no recorded input explains."""
    changed = versions(then.facts, now.facts)
    if changed:
        return "; ".join(["library versions differ", *changed])
    lines = manifest.json_differences(then.facts["machine"], now.facts["machine"])
    lines += manifest.json_differences(
        then.execution.get("attention"), now.execution.get("attention")
    )
    if lines:
        return "; ".join(["the machine differs (then | now)", *lines])
    return "the versions and the machine are the same, so nothing recorded explains it"


def first_difference(rows: Iterable[Row]) -> Row | None:
    """The first row that is not the same, in the order in which things were made."""
    return next((row for row in rows if row.same is False), None)
