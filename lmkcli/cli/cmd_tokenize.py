"""lmk tokenize: documents to token ids, with length statistics; --show places one text."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmkcli.cli import completion, console, recording, tables
from lmkcli.cli.flags import Subset, with_flags
from lmkcli.cli.groups import note_differences, note_left_out, over_groups
from lmkcli.cli.options import CollectionOptions, NewOutput
from lmkcli.errors import UsageError
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings, Flag

if TYPE_CHECKING:
    from lmkcli.models.tokenizer import Tokenizer
    from lmkcli.pooling.placement import Placement
    from lmkcli.store.tokens import Tokens

LENGTHS = (512, 2048, 8192, 32768)
GRANULARITIES = (32, 64, 128, 256)
# Tokens have no queries, no vectors, and no contexts, which are tokenized with the chunks.
_WITHOUT = (
    *("context", "extend", "pad_to_max", "query_max_length", "query_prompt"),
    *("dim", "normalize"),
)


@dataclass(frozen=True)
class TokensOutput(NewOutput):
    """Where the tokens go, unless one text is shown."""

    show: Annotated[str | None, Flag("Print how this one text is placed, and write nothing.")] = (
        None
    )


@over_groups("source")
@with_flags
def tokenize(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[COLLECTION]",
            help="What to tokenize.",
            autocompletion=completion.collections,
        ),
    ],
    recipe: Annotated[RecipeOptions, Subset(without=_WITHOUT, required=("model",))],
    settings: Annotated[EncodeSettings, Subset(only=("store_text",))],
    documents: CollectionOptions,
    output: TokensOutput,
) -> None:
    """Documents to content token ids and offsets, once for all poolers with the same tokenizer.

    Prints length statistics: what would be cut at which length, and what landmarks cost. The pooler
    matters only for --show and for --gran sentence, where each sentence is tokenized by itself.
    """
    if output.show is not None:
        if source is not None or output.output is not None:
            raise UsageError(
                "--show prints one text and writes nothing; drop the collection and --output"
            )
        return _show(output.show, recipe, documents.offline, output.json)
    if source is None:
        raise UsageError("give a collection to tokenize, or a text with --show")
    output.path("tokens/", documents.shards)
    from lmkcli.encoding import planning
    from lmkcli.store.tokens import Tokens

    job = planning.plan(
        documents.spelling(source), recipe, settings, documents.shard, documents.offline
    )
    folder = output.prepared("tokens/", job.shard.count)
    from lmkcli.encoding import jobs  # here, after all that can be said without torch

    with console.reporting("tokenize", recording.call()) as report:
        jobs.run_tokenize(job, folder, report)
    note_left_out(job.source)
    tokens = Tokens(folder)
    if job.shard.count == 1:
        note_differences(job.origin["name"], docs=len(tokens.lengths()))
    print_lengths(tokens, output.json)


def print_lengths(tokens: "Tokens", json: bool) -> None:
    """Length statistics of a tokens folder."""
    facts = _statistics(tokens)
    if json:
        return console.plain_json({"tokens": str(tokens.folder), **facts})
    rows = [
        [key, f"{value:.1%}" if isinstance(value, float) and key != "mean" else _whole(value)]
        for key, value in facts.items()
    ]
    tables.table([str(tokens.folder), ""], rows, tables.Format.table)


def _whole(value: Any) -> str:
    return console.number(round(value))


def _statistics(tokens: "Tokens") -> dict[str, Any]:
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


def _show(text: str, recipe: RecipeOptions, offline: bool, json: bool) -> None:
    from lmkcli.encoding.resolving import resolve

    resolved = resolve(recipe, offline)
    from lmkcli.encoding.encoder import make_placer
    from lmkcli.models.tokenizer import open_tokenizer

    config = resolved.recipe.doc
    tokenizer = open_tokenizer(resolved.folder, config)
    placer = make_placer(config, tokenizer.special)
    content = tokenizer([text])[0]
    placed = placer.place(placer.content(content.ids, content.prompt, content.ends))
    if json:
        lost = len(content.ids) - placed.kept
        inputs = _inputs(placed, tokenizer)
        return console.plain_json({"inputs": inputs, "vectors": placed.vectors, "lost": lost})
    _print_placed(placed, tokenizer, len(content.ids), averaged=config.pool != "model")


def _inputs(placed: "Placement", tokenizer: "Tokenizer") -> list[dict[str, Any]]:
    """The inputs of the model as JSON."""
    return [
        {
            "ids": one.ids.tolist(),
            "tokens": tokenizer.tokens(one.ids),
            "marks": one.marks.tolist(),
            "vectors": one.groups.tolist(),
        }
        for one in placed.inputs
    ]


def _print_placed(
    placed: "Placement", tokenizer: "Tokenizer", content_tokens: int, averaged: bool
) -> None:
    """The inputs of the model, a line each, with marks where states are averaged."""
    for one in placed.inputs:
        marked = set(one.marks.tolist()) if averaged else set()
        tokens = tokenizer.tokens(one.ids)
        console.say(
            " ".join(f"«{token}»" if i in marked else token for i, token in enumerate(tokens))
        )
    positions = sum(len(one.ids) for one in placed.inputs)
    marks = sum(len(one.marks) for one in placed.inputs)
    states = f"«marked»: {marks} positions whose states are averaged to " if averaged else ""
    console.note(
        f"{_count(len(placed.inputs), 'input')} of {positions} positions: {placed.kept} of "
        f"{content_tokens} content tokens; {states}{_count(placed.vectors, 'vector')}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
