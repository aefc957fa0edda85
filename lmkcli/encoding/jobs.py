"""Jobs over a whole collection: the texts to read, and the recipe that converts them.

`plan` finds the mistakes of a job. Nothing here imports torch, so mistakes are reported at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import Origin, Subset, TokensIdentity
from lmkcli.catalog import CODECS
from lmkcli.data import contexts
from lmkcli.data.collection import Collection, Shard, open_collection
from lmkcli.data.run import RunSubset
from lmkcli.encoding.resolution import ResolvedRecipe, check_options, representation_of, resolve
from lmkcli.errors import Mismatch, UsageError
from lmkcli.spec.recipe import EncoderConfig, RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.store import parts
from lmkcli.store.tokens import Tokens


@dataclass(frozen=True)
class CollectionJob:
    """The texts of a job, its recipe and settings, and the shard of this task."""

    source: Collection | Tokens
    resolved: ResolvedRecipe
    settings: EncodeSettings
    shard: Shard

    @property
    def origin(self) -> Origin:
        """The name and stamp of the collection. For tokens, those of the collection that they record."""
        if isinstance(self.source, Tokens):
            return self.source.manifest.execution.source
        only = None
        if isinstance(self.source, RunSubset):
            only = Subset(documents=len(self.source.ids), digest=self.source.digest)
        return Origin(name=self.source.name, stamp=self.source.file_stats(), only=only)

    @property
    def text(self) -> dict[str, str]:
        """The settings that determine the text of a document."""
        if isinstance(self.source, Tokens):
            return self.source.manifest.identity.text
        return self.source.settings

    def source_notes(self) -> list[str]:
        """Lines for people about how the collection is read."""
        return [] if isinstance(self.source, Tokens) else self.source.notes()

    @property
    def skipped(self) -> int:
        """The number of files or rows that could not be read and were left out."""
        return 0 if isinstance(self.source, Tokens) else self.source.skipped_count()


def plan(
    source: str,
    options: RecipeOptions,
    settings: EncodeSettings,
    shard: Shard,
    offline: bool = False,
) -> CollectionJob:
    """Return the job for a collection or a tokens folder.

    Raises UsageError for options that do not fit, and Mismatch if tokens were made with another tokenizer,
    prompt or splitter.
    """
    check_options(options)
    opened: Collection | Tokens
    if (Path(source) / manifest.NAME).is_file():
        opened = Tokens(Path(source))
    else:
        opened = open_collection(source, context=contexts.field_of(options.context or ""))
    resolved = resolve(options, offline)
    pool = resolved.recipe.doc.pool
    representation, stored = representation_of(pool), CODECS[settings.store_dtype].rows
    if codec := representation.codec:
        if settings.store_dtype != EncodeSettings.store_dtype:
            raise UsageError(
                f"--store-dtype {settings.store_dtype} has no effect with --pool {pool}, whose vectors have "
                f"one stored form ({codec}); drop it"
            )
        settings = replace(settings, store_dtype=codec)
    elif stored != representation.kind:
        raise UsageError(
            f"--store-dtype {settings.store_dtype} stores {stored} vectors, and --pool {pool} makes "
            f"{representation.kind} ones; drop it"
        )
    how = resolved.recipe.doc.context
    if isinstance(opened, Tokens):
        _check_tokens(opened, resolved)
    else:
        named = opened.settings.get("context", "")
        if named and named != contexts.field_of(how):
            raise UsageError(f"{opened.name}: to use these contexts, add --context field:{named}")
    return CollectionJob(opened, resolved, settings, shard)


def tokens_identity(side: EncoderConfig, text: dict[str, str]) -> TokensIdentity:
    """Return the settings that determine the token ids of a collection with these settings of its texts."""
    return TokensIdentity(
        tokenizer=side.tokenizer,
        prompt=side.prompt,
        splitter=side.splitter,
        keep_space=side.keep_space,
        hides_prompt=bool(side.prompt) and not side.include_prompt,
        text=text,
    )


def _check_tokens(tokens: Tokens, resolved: ResolvedRecipe) -> None:
    """Raise Mismatch or UsageError if tokens lack something that the recipe needs."""
    if tokens.state.unfinished:
        raise UsageError(f"{tokens.folder} is not complete; run its tokenize command again")
    made = tokens.manifest.identity
    required = tokens_identity(resolved.recipe.doc, made.text)
    lines = manifest.json_differences(made, required)
    if lines:
        raise Mismatch(
            f"{tokens.folder} was tokenized with other settings (existing | required):\n  "
            + "\n  ".join(lines)
            + "\ntokenize the collection again with these settings"
        )
    how = resolved.recipe.doc.context
    if field := contexts.field_of(how):
        raise UsageError(
            f"{tokens.folder} does not contain the field '{field}'; encode the collection that it was made "
            "from"
        )
    if how and not tokens.has_text:
        raise UsageError(
            f"--context {how} needs texts, and {tokens.folder} has none (--no-store-text); encode the "
            "collection that it was made from"
        )


def restricted_to_run(job: CollectionJob, run: Path) -> CollectionJob:
    """Return the job for only the documents of a run. Raises UsageError if its source is tokens."""
    if isinstance(job.source, Tokens):
        raise UsageError("--only selects documents of a collection, and does not work with tokens")
    return replace(job, source=RunSubset(job.source, run))


def count_missing(job: CollectionJob, folder: Path) -> int | None:
    """Return how many documents of the run are missing in the collection; None if shards are unfinished."""
    if not isinstance(job.source, RunSubset):
        return 0
    state = parts.read_state(folder, job.shard.count)
    return None if state.unfinished else len(job.source.ids) - sum(p.rows for p in state.slices)


def describe_job(job: CollectionJob) -> Iterator[str]:
    """Yield lines for people that describe the recipe of a job."""
    doc, query = job.resolved.recipe.doc, job.resolved.recipe.query
    gran = f" gran {doc.gran}" if doc.gran else ""
    unit = f", a vector for each {doc.unit}" if doc.unit != "doc" else ""
    window = f", window {doc.window}" if doc.window != "full" else ""
    window += f" overlap {doc.overlap}" if doc.overlap else ""
    window += f" after its context ({doc.context})" if doc.context else ""
    yield (
        f"{job.resolved.folder.name}: pool {doc.pool}{gran}{unit}{window}, "
        f"max length {doc.max_length}{f' (positions {doc.extend})' if doc.extend else ''}"
        f"{', padded to full length' if doc.pad_to_max else ''}, {doc.similarity}"
        f"{', normalised' if doc.normalize else ''}{f', first {doc.dim} dimensions' if doc.dim else ''}"
        f"{''.join(f', {name} {value}' for name, value in doc.settings.items())}"
    )
    if doc.prompt or query.prompt:
        yield f"prompts: documents {doc.prompt!r}, queries {query.prompt!r}"
    yield from job.resolved.notes
    yield from job.source_notes()
