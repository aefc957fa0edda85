"""Describing: an artifact, its parts and its lineage as nested facts, for people and for JSON."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmkcli import manifest, parts
from lmkcli.building import part_summary
from lmkcli.collection import Collection, CollectionDigest
from lmkcli.index import BUILT, ready
from lmkcli.manifest import Manifest
from lmkcli.searching import read_manifest
from lmkcli.tokens import sum_counts

_SIDE = (
    "pool",
    "gran",
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
    found = manifest.read(path)
    facts = {
        "artifact": f"{found.kind} {path}",
        "fingerprint": found.fingerprint[:16],
        **_made(found),
    }
    if found.kind == "index":
        return facts | _index(path, found)
    return facts | _parted(path, found)


def _made(found: Manifest) -> dict[str, Any]:
    facts = found.facts
    return {
        "made": f"{facts.get('time', '')} with lmk {facts.get('lmk', '')}",
        "command": " ".join(facts.get("command", [])),
    }


def _parted(path: Path, found: Manifest) -> dict[str, Any]:
    shards = int(found.execution["shards"])
    state = parts.state(path, shards)
    digests = (part_summary(path, piece.name)["collection"] for piece in state.slices)
    whole = all(not piece.skip for piece in state.slices)
    return {
        **_recipe(found),
        "contents": asdict(sum_counts(path, state.slices)),
        "parts": len(state.slices),
        "shards": f"{shards - len(state.unfinished)} of {shards} finished",
        "unfinished": ", ".join(map(str, state.unfinished)),
        "execution": {k: v for k, v in found.execution.items() if k not in ("shards", "source")},
        "from": {
            "collection": found.execution["source"]["name"],
            "only": found.execution["source"].get("only"),
            "digest": str(CollectionDigest.sum(digests)) if whole else "",
            "text": found.identity["text"],
        },
    }


def _recipe(found: Manifest) -> dict[str, Any]:
    if found.kind == "tokens":
        return {"tokens of": {k: found.identity[k] for k in ("tokenizer", "prompt", "splitter")}}
    recipe, models = found.identity["recipe"], found.facts["models"]
    return {
        "vectors of": f"{found.identity['dim']} components",
        "documents": {"model": models["doc"]["model"], **_side(recipe["doc"])},
        "queries": {"model": models["query"]["model"], **_side(recipe["query"])},
    }


def _side(side: dict[str, Any]) -> dict[str, Any]:
    return {key: side[key] for key in _SIDE}


def _index(path: Path, found: Manifest) -> dict[str, Any]:
    built = ready(path)
    made = {
        "kind": found.identity["family"],
        "settings": found.identity["settings"],
        "built": built or f"no: {BUILT} is missing",
    }
    if "vectors" not in found.identity:
        return made | {
            "from": {**found.identity["collection"], "digest": built.get("collection", "")}
        }
    where = path / found.facts["vectors"]
    lineage = (
        artifact(where) if (where / manifest.NAME).is_file() else f"vectors {where}, not there now"
    )
    return made | {"from": lineage}


def run(path: Path) -> dict[str, Any]:
    """What a run is and which index it came from."""
    found = read_manifest(path)
    facts = {
        "artifact": f"run {path}",
        "fingerprint": found.fingerprint[:16],
        **_made(found),
        "depth": found.identity["k"],
        "queries of": found.facts["collection"],
    }
    where = Path(found.facts["index"])
    lineage = (
        artifact(where) if (where / manifest.NAME).is_file() else f"index {where}, not there now"
    )
    return facts | {"from": lineage}


def collection(given: Collection) -> dict[str, Any]:
    """Counts, settings and digest of a collection; reads it through."""
    from lmkcli.collection import doc_hash

    digest = CollectionDigest()
    characters = 0
    for doc in given.docs():
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
        }
    return facts
