"""Descriptions of artifacts, runs, logs and collections as nested facts, for people and for JSON."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmkcli.artifact import manifest, outputs
from lmkcli.artifact.kinds import (
    ExportManifest,
    IndexManifest,
    Manifest,
    ModelManifest,
    ShardsManifest,
    TokensManifest,
    VectorsManifest,
    plain,
)
from lmkcli.artifact.shards import Shards
from lmkcli.data import hub_layouts, known_collections
from lmkcli.data.collection import Collection, CollectionDigest
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError
from lmkcli.models.lookup import is_model
from lmkcli.provenance import lineage
from lmkcli.retrieval.index_folder import BUILT, read_record, state_of_vectors
from lmkcli.retrieval.searching import read_manifest
from lmkcli.spec.recipe import EncoderConfig, RecipeOptions
from lmkcli.store import parts
from lmkcli.store.part_reader import collection_digest, sum_counts
from lmkcli.text.formatting import shell_line
from lmkcli.training.training_record import read_training_record

if TYPE_CHECKING:
    from lmkcli.provenance.scorelog import LogEntry

# Fields of a recipe that are always shown; others only with unusual values
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
    """Return the kind, recipe, contents, completeness and lineage of a folder."""
    described = manifest.read(path)
    facts = {
        "artifact": f"{described.kind} {path}",
        "fingerprint": manifest.fingerprint(described)[:16],
        **_made(described),
    }
    match described:
        case IndexManifest():
            return facts | _index(path, described)
        case ShardsManifest():
            return facts | _shards(path, described)
        case ExportManifest():
            made = {"to": described.identity.to, "made of": described.facts.made_of}
            return facts | made | (_declared(str(path)) if is_model(str(path)) else {})
        case ModelManifest():
            return facts | _model(path, described)
        case TokensManifest() | VectorsManifest():
            return facts | _parted(path, described)
    raise DataError(f"{path} contains a {described.kind}; name it as a file")


def _shards(path: Path, described: ShardsManifest) -> dict[str, Any]:
    """Return the finished shards of a run or an index."""
    shards = Shards(path)
    left = shards.unfinished()
    finish = _completion_of(described, left, shards.count) if left else ""
    return {
        "shards": f"{shards.count - len(left)} of {shards.count} finished",
        "finish with": finish or "the same command without --shard",
    }


def _model(path: Path, described: ModelManifest) -> dict[str, Any]:
    """Return the state and the results of a training."""
    identity = described.identity
    inputs = {
        "base": described.facts.models.doc.model,
        "documents": _side(identity.recipe.doc),
        "granularities": " ".join(identity.granularities),
        "settings": identity.settings,
        "data": identity.data,
    }
    trained = read_training_record(path)
    if trained is None:
        last = max(outputs.checkpoints(path), default=0)
        return {
            "unfinished": f"at step {last} of {identity.steps}; run its command again",
            **inputs,
        }
    words = described.facts.command
    for flag in ("-o", "--output", "--if-exists"):
        words = _without(words, flag)
    line = completion(words, [], 1, described.facts.directory)
    return {
        "steps": trained["steps"],
        "last": next(reversed(trained["curve"]), None),
        "best": trained["dev"].get("published") if "dev" in trained else None,
        **inputs,
        "sources": trained["sources"],
        "repeat with": f"{line} -o {shell_line(f'{path.absolute()}-again')}",
    }


def model(name: str) -> dict[str, Any]:
    """Return a model folder, or one of lmk's own models."""
    return {"artifact": f"model {name}", **_declared(name)}


def _declared(name: str) -> dict[str, Any]:
    """Return the kind of a model, and its recipe without any flags."""
    resolved = resolve(RecipeOptions(model=name), offline=True)
    return {
        "model kind": resolved.folder.kind,
        "note": "; ".join(resolved.notes),
        "documents": _side(resolved.recipe.doc),
        "queries": _side(resolved.recipe.query),
    }


def _made(described: Manifest) -> dict[str, Any]:
    facts = described.facts
    return {
        "made": f"{facts.time} with lmk {facts.lmk}",
        "command": shell_line(*facts.command),
    }


def _parted(path: Path, described: TokensManifest | VectorsManifest) -> dict[str, Any]:
    execution = described.execution
    shards, source = execution.shards, execution.source
    state = parts.read_state(path, shards)
    updated = parts.read_generation(path)
    skipped = 0 if updated else parts.skipped_count(path, shards)
    return {
        **_recipe(described),
        "contents": sum_counts(path, state.slices).as_json(),
        **({"skipped": skipped} if skipped else {}),
        "generation": updated.number if updated else None,
        "parts": len(state.slices),
        "shards": f"{shards - len(state.unfinished)} of {shards} finished",
        **_unfinished(described, state),
        "execution": {k: v for k, v in plain(execution).items() if k not in ("shards", "source")},
        "from": {
            "collection": source.name,
            "only": plain(source.only),
            "digest": collection_digest(path, state.slices),
            "text": described.identity.text,
        },
    }


def _unfinished(
    described: TokensManifest | VectorsManifest, state: parts.ArtifactState
) -> dict[str, Any]:
    """Return the unfinished shards, the number of documents in each, and the command line that completes
    them.
    """
    if not state.unfinished:
        return {}
    count = described.execution.shards
    rows: Counter[int] = Counter()
    for piece in state.slices:
        rows[piece.name.shard.number] += piece.rows
    return {
        "unfinished shards, documents done": {str(i): rows[i] for i in state.unfinished},
        "finish with": _completion_of(described, state.unfinished, count),
    }


def _completion_of(described: Manifest, unfinished: list[int], count: int) -> str:
    """Return the shell line that completes these of `count` shards of an artifact."""
    facts = described.facts
    return completion(facts.command, unfinished, count, facts.directory)


def completion(command: list[str], unfinished: list[int], count: int, directory: str = "") -> str:
    """Return the shell line that completes these of `count` shards, from the command that started them.

    `directory` is the working directory of that command.
    """
    words = _without(["lmk", *command[1:]], "--if-exists", "overwrite", "fail")
    change = f"cd {shell_line(directory)} && " if directory not in ("", os.getcwd()) else ""
    if count == 1:
        return change + shell_line(*words)
    text = f"{change}{shell_line(*_without(words, '--shard'))} --shard $SLURM_ARRAY_TASK_ID/{count}"
    return f"sbatch --array={ranges(unfinished)} job.sh  # in it: {text}"


def _without(words: list[str], flag: str, *values: str) -> list[str]:
    """Return the words without a flag and its value. If `values` are given, other values of the flag stay."""
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
    """[2, 5, 7, 8, 9] -> '2,5,7-9', an array of sbatch."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def _recipe(described: TokensManifest | VectorsManifest) -> dict[str, Any]:
    if isinstance(described, TokensManifest):
        made = described.identity
        return {
            "tokens of": {
                "tokenizer": made.tokenizer,
                "prompt": made.prompt,
                "splitter": made.splitter,
            }
        }
    recipe = described.recipe
    return {
        "vectors of": f"{described.identity.dim} dimensions",
        "documents": {"model": recipe.doc.model, **_side(recipe.doc)},
        "queries": {"model": recipe.query.model, **_side(recipe.query)},
    }


def _side(encoder: EncoderConfig) -> dict[str, Any]:
    side = encoder.identity()
    rest = {
        f.name: f.default for f in fields(EncoderConfig) if f.name in side and f.name not in _SIDE
    }
    unusual = {key: side[key] for key, usual in rest.items() if side[key] not in (usual, [])}
    return {key: side.get(key) for key in _SIDE} | unusual


def _index(path: Path, described: IndexManifest) -> dict[str, Any]:
    record = read_record(path, described)
    unfinished = (
        state_of_vectors(record.of).unfinished_shards if record and described.facts.vectors else ()
    )
    facts = {
        "kind": described.identity.family,
        "settings": described.identity.settings,
        "unfinished shards": list(unfinished) or None,
        "built": record.shown if record else f"no: {BUILT} is missing",
    }
    if indexed := described.identity.collection:
        digest = record.facts.get("collection", "") if record else ""
        return facts | {"from": {**plain(indexed), "digest": digest}}
    vectors = path / described.facts.vectors
    if not (vectors / manifest.NAME).is_file():
        return facts | {"from": f"vectors {vectors}, now missing"}
    manifest.read(vectors, VectorsManifest)  # an index of an index could be one of itself
    return facts | {"from": artifact(vectors)}


def run(path: Path) -> dict[str, Any]:
    """Facts about a run, and the artifacts that it was made from."""
    described = read_manifest(path)
    facts = {
        "artifact": f"run {path}",
        "fingerprint": manifest.fingerprint(described)[:16],
        **_made(described),
        "depth": described.identity.k,
        "queries of": described.facts.collection,
        **described.identity.search,
    }
    index = described.facts.index
    others = [each for each in lineage.inputs(lineage.read(path)) if each != index]
    sources = {"from": _source(Path(index))}
    return facts | sources | {f"and from {Path(o).name}": _source(Path(o)) for o in others}


def _source(path: Path) -> dict[str, Any] | str:
    if (path / manifest.NAME).is_file():
        return artifact(path)
    return f"{path}" if path.is_file() else f"{path}, now missing"


def log(entries: "Sequence[LogEntry]", measures: list[str]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a score log: number, time, run, and these measures."""
    here = f"{os.getcwd()}{os.sep}"  # paths below the working directory are shown relative to it
    rows: list[list[Any]] = []
    for number, entry in enumerate(entries, 1):
        scores = [entry["scores"].get(name, "") for name in measures]
        rows.append(
            [number, entry.get("time", ""), entry.get("run", "").removeprefix(here), *scores]
        )
    return ["#", "time", "run", *measures], rows


def _document(judged: str) -> str:
    """Return the id of the document of a judged chunk such as 'doc#3'; empty if it is no chunk."""
    return judged.rpartition("#")[0]


def collection(given: Collection) -> dict[str, Any]:
    """Counts, settings and digest of a collection, which is read completely."""
    from lmkcli.data.collection import doc_hash

    digest = CollectionDigest()
    characters = 0
    judged = {each.doc_id for each in given.qrels()} if given.has_qrels() else set()
    wanted = judged | {_document(name) for name in judged}
    found = set()
    for doc in given.docs():
        found.update(wanted & {doc.id})
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
        missing = {name for name in judged if not {name, _document(name)} & found}
        example = f"{len(missing):,} documents, such as {min(missing)}" if missing else ""
        facts |= {
            "judged queries": len(given.judged_queries()),
            "judgements": sum(1 for _ in given.qrels()),
            "judged but not there": example,
        }
    counts = facts["documents"], facts.get("judged queries")
    differ = known_collections.count_differences(given.name, *counts)
    return facts | {
        "left out": given.skipped_files(),
        **({"encodings": given.guessed_encodings()} if given.guessed_encodings() else {}),
        **({"columns": given.chosen_columns()} if given.chosen_columns() else {}),
        **({"skipped": given.skipped_count()} if given.skipped_count() else {}),
        "stamp": given.file_stats(),
        "differs": "; ".join(differ),
        "published": hub_layouts.published(given.name),
    }
