"""Tokenize: convert documents to token ids, with length statistics; or print the placement of one text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli.errors import UsageError
from lmkcli.operations.options import (
    CollectionOptions,
    Destination,
    NewOutput,
    note_differences,
    note_skipped,
)
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.recipe import POOLER_OPTIONS, Model, RecipeOptions
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import EncodeSettings, Flag
from lmkcli.text.formatting import counted

if TYPE_CHECKING:
    from lmkcli.models.tokenizer import Tokenizer
    from lmkcli.pooling.placement import Placement
    from lmkcli.vectors.rows import VectorRows

LENGTHS = (512, 2048, 8192, 32768)
GRANULARITIES = (32, 64, 128, 256)


@dataclass(frozen=True)
class Tokenized(Result):
    """A tokens folder and statistics of the lengths of its documents."""

    output: Path
    statistics: dict[str, Any]
    skipped: int = 0  # files or rows that could not be read

    def as_json(self) -> Any:
        """Return the folder and the statistics, and the number of skipped files or rows if it is not 0."""
        skipped = {"skipped": self.skipped} if self.skipped else {}
        return {"tokens": str(self.output), **self.statistics, **skipped}

    def blocks(self) -> Iterator[Table | str]:
        """Yield the statistics; shares as percentages."""
        rows = [
            [
                key,
                f"{item:.1%}" if isinstance(item, float) and key != "mean" else f"{round(item):,}",
            ]
            for key, item in self.statistics.items()
        ]
        yield Table([str(self.output), ""], rows)


@dataclass(frozen=True, kw_only=True)
class Placed(Tokenized):
    """The placement of one text into the inputs of the model (`--show`). No folder is written."""

    output: Path = Path()
    statistics: dict[str, Any] = field(default_factory=dict)
    placement: "Placement"
    tokenizer: "Tokenizer"
    content_tokens: int
    how: str  # what happens to marked states; empty for models that return one vector per input
    encoded: "VectorRows | None" = None  # its vectors, if their dimensions are terms

    def as_json(self) -> Any:
        """Return the inputs with their ids, tokens and marks; the numbers of vectors and of lost tokens."""
        inputs = [
            {
                "ids": one.ids.tolist(),
                "tokens": self.tokenizer.tokens(one.ids),
                "marks": one.marks.tolist(),
                "vectors": one.groups.tolist(),
            }
            for one in self.placement.inputs
        ]
        lost = self.content_tokens - self.placement.kept
        expanded = [
            [{"token": token, "weight": weight} for token, weight in terms]
            for terms in self.terms()
        ]
        terms = {} if self.encoded is None else {"terms": expanded}
        return {"inputs": inputs, "vectors": self.placement.vectors, "lost": lost, **terms}

    def terms(self) -> list[list[tuple[str, float]]]:
        """Return the terms of each vector with their weights, the largest first."""
        import numpy as np

        found = []
        for weights in [] if self.encoded is None else self.encoded.matrix():
            order = np.argsort(-weights, kind="stable")[: np.count_nonzero(weights)]
            tokens = self.tokenizer.tokens(order.astype(np.int32))
            found.append(list(zip(tokens, weights[order].tolist(), strict=True)))
        return found

    def blocks(self) -> Iterator[Table | str]:
        """Yield the inputs, one per line, with « » around the marked positions; then the terms of each
        vector.
        """
        lines = []
        for one in self.placement.inputs:
            marked = set(one.marks.tolist()) if self.how else set()
            tokens = self.tokenizer.tokens(one.ids)
            lines.append(" ".join(f"«{t}»" if i in marked else t for i, t in enumerate(tokens)))
        lines += [
            ", ".join(f"{token} {weight:.2f}" for token, weight in terms) or "no term"
            for terms in self.terms()
        ]
        yield "\n".join(lines)

    @property
    def note(self) -> str:
        """The counts as a sentence."""
        placed = self.placement
        positions = sum(len(one.ids) for one in placed.inputs)
        marks = sum(len(one.marks) for one in placed.inputs)
        states = f"{counted(marks, '«marked» position')} {self.how} to " if self.how else ""
        return (
            f"{counted(len(placed.inputs), 'input')} of {positions} positions: {placed.kept} of "
            f"{counted(self.content_tokens, 'content token')}; {states}{counted(placed.vectors, 'vector')}"
        )


def length_statistics(tokens: Any) -> dict[str, Any]:
    """Counts of tokens, quantiles of lengths, shares of longer documents, and the overhead of landmarks."""
    import numpy as np

    lengths = tokens.lengths()
    facts: dict[str, Any] = {
        "documents": len(lengths),
        "tokens": int(lengths.sum()),
        "empty": int((lengths == 0).sum()),
    }
    if not len(lengths) or not lengths.sum():
        return facts
    facts |= {
        "mean": float(lengths.mean()),
        "median": int(np.median(lengths)),
        "p95": int(np.percentile(lengths, 95)),
        "max": int(lengths.max()),
    }
    facts |= {f"longer than {limit}": float((lengths > limit).mean()) for limit in LENGTHS}
    overhead = {g: float((-(-lengths // g)).sum() / lengths.sum()) for g in GRANULARITIES}
    return facts | {f"landmarks at gran {g}": share for g, share in overhead.items()}


@dataclass(frozen=True)
class Tokenize(Operation[Tokenized], NewOutput, CollectionOptions, RecipeOptions):
    """Convert documents to content token ids and offsets, once for all poolers with the same tokenizer.

    lmk prints length statistics: the shares of documents longer than several lengths, and the share of
    positions that landmarks would add. --pool has an effect only with --show, and with --gran sentence,
    which tokenizes each sentence separately.
    """

    verb: ClassVar[str] = "tokenize"
    example: ClassVar[str] = "tokens/"
    per_member: ClassVar[tuple[str, str]] = ("source", "")
    # A tokens folder contains no queries and no vectors. lmk encode tokenizes the contexts of chunks.
    unused: ClassVar[tuple[str, ...]] = (
        *("context", "extend", "pad_to_max", "query_max_length", "query_prompt"),
        *("dim", "normalize"),
        *(name for name in POOLER_OPTIONS if name.startswith("query_")),
    )

    source: Annotated[
        str | None,
        Flag(
            "The collection to tokenize.",
            argument=True,
            metavar="[COLLECTION]",
            role="collection",
            suggest_for="--input --corpus --collection --dataset",
        ),
    ] = None
    model: Model = field(kw_only=True)
    store_text: Annotated[bool, Flag("Store titles and texts with the tokens.")] = field(
        default=True, kw_only=True
    )
    show: Annotated[
        str | None,
        Flag(
            "Print the placement of this text, and the terms of its vector if it has terms; write nothing.",
            role="mode",
            suggest_for="--text",
        ),
    ] = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raise UsageError for settings that contradict each other."""
        if self.show is None and self.source is None:
            raise UsageError("give a collection to tokenize, or a text with --show")
        if self.show is not None and (self.source is not None or self.output is not None):
            raise UsageError(
                "--show prints one text and writes nothing; drop the collection and --output"
            )

    def execute(self, report: Report) -> Tokenized:
        """Tokenize the collection, or place one text."""
        if self.show is not None:
            placed = self._placed(self.show)
            report.note(placed.note)
            return placed
        destination = Destination(self, self.shard.count)
        from lmkcli.encoding import jobs
        from lmkcli.store import parts
        from lmkcli.store.tokens import Tokens

        recipe, settings = self.part(RecipeOptions), EncodeSettings(store_text=self.store_text)
        source = self.spelling(str(self.source))
        job = jobs.plan(source, recipe, settings, self.shard, self.offline)
        for line in job.source_notes():
            report.note(line)
        folder = destination.prepare(report)
        from lmkcli.encoding import shard_run  # imports torch: only after all checks

        with report.job("tokenize") as running:
            shard_run.run_tokenize(job, folder, running)
        note_skipped(report, job.source)
        tokens = Tokens(folder)
        if job.shard.count == 1:
            note_differences(report, job.origin.name, docs=len(tokens.lengths()))
        return Tokenized(
            folder,
            length_statistics(tokens),
            parts.skipped_count(folder, self.shard.count),
        )

    def _placed(self, text: str) -> Placed:
        from lmkcli.encoding.resolution import representation_of, resolve

        resolved = resolve(self.part(RecipeOptions), self.offline)
        from lmkcli.encoding.encoder import (  # imports torch: only after all checks
            make_placer,
            open_encoder,
        )
        from lmkcli.models.tokenizer_folder import open_tokenizer
        from lmkcli.pooling.table import MEAN_ONLY

        config = resolved.recipe.doc
        tokenizer = open_tokenizer(resolved.folder, config)
        placer = make_placer(config, tokenizer.special)
        content = tokenizer([text])[0]
        placed = placer.place_text(content.ids, content.prompt, content.ends)
        encoded = None
        how = "averaged" if placer.pooler.reductions == MEAN_ONLY else "pooled"
        if representation_of(config.pool).of_terms:
            how = "expanded"
            encoder = open_encoder(config, resolved.folder, EncodeSettings())
            encoded = encoder.texts([content], ["this text"])
        return Placed(
            placement=placed,
            tokenizer=tokenizer,
            content_tokens=len(content.ids),
            how=how * (config.pool != "model"),
            encoded=encoded,
        )
