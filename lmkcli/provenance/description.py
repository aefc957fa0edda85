"""Describing: an artifact, its parts and its lineage as nested facts, for people and for JSON."""

import os
import shlex
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

from lmkcli import manifest
from lmkcli.data import hub_layouts, known
from lmkcli.data.collection import Collection
from lmkcli.data.digest import CollectionDigest
from lmkcli.manifest import Manifest
from lmkcli.provenance import lineage
from lmkcli.reading import read_json
from lmkcli.recipe import EncoderConfig
from lmkcli.retrieval.index_folder import BUILT, read_built
from lmkcli.retrieval.searching import read_manifest
from lmkcli.store import parts
from lmkcli.store.shards import Shards
from lmkcli.store.summary import collection_digest, sum_counts

_SIDE = (
    "pool",
    "gran",
    "context",
    "unit",
    "window",
    "overlap",
    "extend",
    "max_length",
    "prompt",
    "dim",
    "similarity",
    "normalize",
    "weights",
    "tokenizer",
)


def artifact(path: Path) -> dict[str, Any]:
    """What a folder is: kind, recipe, contents, completeness, lineage."""
    described = manifest.read(path)
    manifest.check_whole(path, described)
    facts = {
        "artifact": f"{described.kind} {path}",
        "fingerprint": described.fingerprint[:16],
        **_made(described),
    }
    if described.kind == "index":
        return facts | _index(path, described)
    if described.kind == "shards":
        return facts | _shards(path, described)
    if described.kind == "export":
        return facts | {"to": described.identity["to"], "made of": described.facts.get("from")}
    if described.kind == "model":
        return facts | _model(path, described)
    return facts | _parted(path, described)


def _shards(path: Path, described: Manifest) -> dict[str, Any]:
    """How far the shards of a run or an index are."""
    shards = Shards(path)
    left = shards.unfinished()
    finish = (
        completion(
            described.facts.get("command", []),
            left,
            shards.count,
            described.facts.get("directory", ""),
        )
        if left
        else ""
    )
    return {
        "shards": f"{shards.count - len(left)} of {shards.count} finished",
        "finish with": finish or "the same command without --shard",
    }


def _model(path: Path, described: Manifest) -> dict[str, Any]:
    """A training: what it learned, or how far it is."""
    settings = described.identity["settings"]
    asked = {
        "base": described.facts["models"]["doc"]["model"],
        "documents": _side(described.identity["recipe"]["doc"]),
        "granularities": " ".join(described.identity["granularities"]),
        "settings": settings,
        "data": described.identity["data"],
    }
    if not (path / "training.json").is_file():
        checkpoints = [name.name for name in (path / "checkpoints").glob("checkpoint-*")]
        last = max((int(name.rpartition("-")[2]) for name in checkpoints), default=0)
        return {
            "unfinished": f"at step {last} of {settings['steps']}; run its command again",
            **asked,
        }
    trained = read_json(path / "training.json", dict[str, Any], "train again")
    return {
        "steps": trained["steps"],
        "last": trained["curve"][-1],
        "best": trained.get("dev", {}).get("published"),
        **asked,
        "sources": trained["sources"],
        "repeat with": _repetition(path, described),
    }


def _repetition(path: Path, described: Manifest) -> str:
    """The shell line that trains the same model beside this one."""
    words = described.facts.get("command", [])
    for flag in ("-o", "--output", "--if-exists"):
        words = _without(words, flag)
    line = completion(words, [], 1, described.facts.get("directory", ""))
    return f"{line} -o {shlex.quote(f'{path.absolute()}-again')}"


def _made(described: Manifest) -> dict[str, Any]:
    facts = described.facts
    return {
        "made": f"{facts.get('time', '')} with lmk {facts.get('lmk', '')}",
        "command": shlex.join(facts.get("command", [])),
    }


def _parted(path: Path, described: Manifest) -> dict[str, Any]:
    shards = int(described.execution["shards"])
    state = parts.state(path, shards)
    updated = parts.generation(path)
    return {
        **_recipe(described),
        "contents": sum_counts(path, state.slices).as_json(),
        "generation": updated.number if updated else None,
        "parts": len(state.slices),
        "shards": f"{shards - len(state.unfinished)} of {shards} finished",
        **_unfinished(path, described, state),
        "execution": {
            k: v for k, v in described.execution.items() if k not in ("shards", "source")
        },
        "from": {
            "collection": described.execution["source"]["name"],
            "only": described.execution["source"].get("only"),
            "digest": collection_digest(path, state.slices),
            "text": described.identity["text"],
        },
    }


def _unfinished(path: Path, described: Manifest, state: parts.State) -> dict[str, Any]:
    """Which shards are not complete, how far each is, and the command line that completes them."""
    if not state.unfinished:
        return {}
    count = int(described.execution["shards"])
    rows: Counter[int] = Counter()
    for piece in state.slices:
        rows[piece.name.shard.number] += piece.rows
    return {
        "unfinished shards, documents done": {str(i): rows[i] for i in state.unfinished},
        "finish with": completion(
            described.facts.get("command", []),
            state.unfinished,
            count,
            described.facts.get("directory", ""),
        ),
    }


def completion(command: list[str], unfinished: list[int], count: int, directory: str = "") -> str:
    """The shell line that completes these of `count` shards, from the command that began them in
    `directory`."""
    words = _without(["lmk", *command[1:]], "--if-exists", "overwrite", "fail")
    there = f"cd {shlex.quote(directory)} && " if directory not in ("", os.getcwd()) else ""
    if count == 1:
        return there + shlex.join(words)
    text = f"{there}{shlex.join(_without(words, '--shard'))} --shard $SLURM_ARRAY_TASK_ID/{count}"
    return f"sbatch --array={ranges(unfinished)} job.sh  # in it: {text}"


def _without(words: list[str], flag: str, *values: str) -> list[str]:
    """The words without a flag and its value; only where it is one of `values`, if there are any."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name != flag:
            kept.append(word)
            continue
        value = value if equals else next(rest, "")
        if values and value not in values:
            kept += [flag, value]
    return kept


def ranges(numbers: list[int]) -> str:
    """[2, 5, 7, 8, 9] -> '2,5,7-9', as sbatch writes an array."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def _recipe(described: Manifest) -> dict[str, Any]:
    if described.kind == "tokens":
        return {
            "tokens of": {k: described.identity[k] for k in ("tokenizer", "prompt", "splitter")}
        }
    recipe, models = described.identity["recipe"], described.facts["models"]
    return {
        "vectors of": f"{described.identity['dim']} dimensions",
        "documents": {"model": models["doc"]["model"], **_side(recipe["doc"])},
        "queries": {"model": models["query"]["model"], **_side(recipe["query"])},
    }


def _side(side: dict[str, Any]) -> dict[str, Any]:
    rest = {
        f.name: f.default for f in fields(EncoderConfig) if f.name in side and f.name not in _SIDE
    }
    unusual = {key: side[key] for key, usual in rest.items() if side[key] not in (usual, [])}
    return {key: side.get(key) for key in _SIDE} | unusual


def _index(path: Path, described: Manifest) -> dict[str, Any]:
    built = read_built(path)
    facts = {
        "kind": described.identity["family"],
        "settings": described.identity["settings"],
        "unfinished shards": built.get("of", {}).get("unfinished shards"),
        "built": {k: v for k, v in built.items() if k not in ("of", "files")}
        or f"no: {BUILT} is missing",
    }
    if "vectors" not in described.facts:
        return facts | {
            "from": {**described.identity["collection"], "digest": built.get("collection", "")}
        }
    where = path / described.facts["vectors"]
    lineage = (
        artifact(where) if (where / manifest.NAME).is_file() else f"vectors {where}, not there now"
    )
    return facts | {"from": lineage}


def run(path: Path) -> dict[str, Any]:
    """What a run is and which index it came from."""
    described = read_manifest(path)
    manifest.check_whole(path, described)
    facts = {
        "artifact": f"run {path}",
        "fingerprint": described.fingerprint[:16],
        **_made(described),
        "depth": described.identity["k"],
        "queries of": described.facts["collection"],
        **described.identity["search"],
    }
    where = described.facts["index"]
    others = [each for each in lineage.inputs(lineage.read(path)) if each != where]
    made_from = {"from": _source(Path(where))}
    return facts | made_from | {f"and from {Path(o).name}": _source(Path(o)) for o in others}


def _source(where: Path) -> dict[str, Any] | str:
    if (where / manifest.NAME).is_file():
        return artifact(where)
    return f"{where}" if where.is_file() else f"{where}, not there now"


def log(entries: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a score log: number, time, run, and every measure that any entry has."""
    names = list(dict.fromkeys(name for entry in entries for name in entry["scores"]))
    rows = [
        [number, entry["time"], _near(entry["run"]), *(entry["scores"].get(n, "") for n in names)]
        for number, entry in enumerate(entries, 1)
    ]
    return ["#", "time", "run", *names], rows


def _near(path: str) -> str:
    """As seen from the current folder, where it is below that."""
    return path.removeprefix(f"{os.getcwd()}{os.sep}")


def _document(judged: str) -> str:
    """The document of a judged chunk, 'doc#3'."""
    return judged.rpartition("#")[0]


def _some(names: set[str]) -> str:
    """How many, and one of them; nothing for none."""
    return f"{len(names):,} documents, such as {min(names)}" if names else ""


def collection(given: Collection) -> dict[str, Any]:
    """Counts, settings and digest of a collection; reads it through."""
    from lmkcli.data.digest import doc_hash

    digest = CollectionDigest()
    characters = 0
    judged = {each.doc_id for each in given.qrels()} if given.has_qrels() else set()
    wanted = judged | {_document(name) for name in judged}
    there = set()
    for doc in given.docs():
        there.update(wanted & {doc.id})
        digest.add(doc_hash(doc))
        characters += len(doc.content)
    facts: dict[str, Any] = {
        "collection": given.name,
        "documents": digest.count,
        "characters": characters,
        "text": given.settings,
        "digest": str(digest),
    }
    if given.has_qrels():
        facts |= {
            "judged queries": len(given.judged_queries()),
            "judgements": sum(1 for _ in given.qrels()),
            "judged but not there": _some({n for n in judged if not {n, _document(n)} & there}),
        }
    counts = facts["documents"], facts.get("judged queries")
    differ = known.count_differences(given.name, *counts)
    return facts | {
        "left out": given.left_out(),
        "stamp": given.stamp(),
        "differs": "; ".join(differ),
        "published": hub_layouts.published(given.name),
    }
