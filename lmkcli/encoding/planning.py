"""Planning: what a job over a whole collection reads, and how. What is wrong with it is said here.

Nothing here imports torch, so that a mistake is answered at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmkcli import manifest
from lmkcli.data import contexts
from lmkcli.data.collection import Collection, Shard, open_collection
from lmkcli.data.subset import Selected
from lmkcli.encoding import asking
from lmkcli.encoding.resolving import Resolved, resolve
from lmkcli.errors import Mismatch, UsageError
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings
from lmkcli.store import parts
from lmkcli.store.tokens import Tokens


@dataclass(frozen=True)
class Job:
    """What will be read, how, and which slice of it."""

    source: Collection | Tokens
    resolved: Resolved
    settings: EncodeSettings
    shard: Shard

    @property
    def origin(self) -> dict[str, Any]:
        """Where the text comes from: name, stamp; the same whether tokens were made before or not."""
        if isinstance(self.source, Tokens):
            return dict(self.source.manifest.execution["source"])
        origin = {"name": self.source.name, "stamp": self.source.stamp()}
        if isinstance(self.source, Selected):
            named = {"documents": len(self.source.ids), "digest": self.source.digest}
            return {**origin, "only": named}
        return origin

    @property
    def text(self) -> dict[str, str]:
        """What decides the text of a document besides the data."""
        if isinstance(self.source, Tokens):
            return dict(self.source.manifest.identity["text"])
        return self.source.settings


def plan(
    source: str,
    options: RecipeOptions,
    settings: EncodeSettings,
    slice_: str,
    offline: bool = False,
) -> Job:
    """A job over a collection or a tokens folder. `slice_` is a shard such as '3/16'.

    Mismatch when tokens were made with another tokenizer, prompt or splitter.
    """
    asking.check(options)
    shard = Shard.parse(slice_)
    given = _source(source, contexts.field_of(options.context or ""))
    resolved = resolve(options, offline)
    if isinstance(given, Tokens):
        _check_tokens(given, resolved)
        _check_texts(given, resolved.recipe.doc.context)
    else:
        _check_context(given, resolved.recipe.doc.context)
    return Job(given, resolved, settings, shard)


def _source(source: str, context: str) -> Collection | Tokens:
    """A tokens folder, or a collection with the field that stands before its texts."""
    if (Path(source) / manifest.NAME).is_file():
        return Tokens(Path(source))
    return open_collection(source, context=context)


def restricted_to_run(job: Job, run: Path) -> Job:
    """The same job over the documents that a run names; UsageError when its source is tokens."""
    if isinstance(job.source, Tokens):
        raise UsageError("--only chooses among the documents of a collection, not of tokens")
    return replace(job, source=Selected(job.source, run))


def count_missing(job: Job, folder: Path) -> int | None:
    """How many documents a run named that the collection does not have; None while shards are to come."""
    if not isinstance(job.source, Selected):
        return 0
    state = parts.state(folder, job.shard.count)
    return None if state.unfinished else len(job.source.ids) - sum(p.rows for p in state.slices)


def _check_tokens(given: Tokens, resolved: Resolved) -> None:
    if given.state.unfinished:
        raise UsageError(f"{given.folder} is not complete; run its tokenize command again")
    here = {k: given.manifest.identity[k] for k in ("tokenizer", "prompt", "splitter")}
    lines = manifest.json_differences(here, resolved.recipe.doc.tokens_identity())
    if lines:
        raise Mismatch(
            f"{given.folder} was tokenized otherwise (there | needed here):\n  "
            + "\n  ".join(lines)
            + "\ntokenize the collection again with these settings"
        )


def _check_texts(given: Tokens, how: str) -> None:
    """UsageError where contexts need what tokens do not hold."""
    if field := contexts.field_of(how):
        raise UsageError(
            f"{given.folder} holds no field '{field}'; encode the collection that it was made of"
        )
    if how and not given.has_text:
        raise UsageError(
            f"--context {how} needs texts, and {given.folder} holds none (--no-store-text); encode the "
            "collection that it was made of"
        )


def _check_context(given: Collection, how: str) -> None:
    """UsageError for a field of contexts that the collection's name has and the recipe has not."""
    named = given.settings.get("context", "")
    if named and named != contexts.field_of(how):
        raise UsageError(f"{given.name}: contexts are asked for with --context field:{named}")


def describe_job(job: Job) -> Iterator[str]:
    """What was resolved, in lines for people."""
    doc, query = job.resolved.recipe.doc, job.resolved.recipe.query
    gran = f" gran {doc.gran}" if doc.gran else ""
    unit = f", a vector for each {doc.unit}" if doc.unit != "doc" else ""
    window = f", window {doc.window}" if doc.window != "full" else ""
    window += f" overlap {doc.overlap}" if doc.overlap else ""
    window += f" behind its context ({doc.context})" if doc.context else ""
    yield (
        f"{job.resolved.folder.name}: pool {doc.pool}{gran}{unit}{window}, "
        f"max length {doc.max_length}{f' (positions {doc.extend})' if doc.extend else ''}"
        f"{', padded to full length' if doc.pad_to_max else ''}, {doc.similarity}"
        f"{', normalised' if doc.normalize else ''}{f', first {doc.dim} dimensions' if doc.dim else ''}"
    )
    if doc.prompt or query.prompt:
        yield f"prompts: documents {doc.prompt!r}, queries {query.prompt!r}"
    yield from job.resolved.notes
