"""lmk tokenize: documents to token ids, with length statistics; --show places one text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmkcli.cli import console, options, tables
from lmkcli.cli.flags import with_flags
from lmkcli.cli.groups import note_differences, over_groups
from lmkcli.cli.options import IfExists
from lmkcli.errors import UsageError
from lmkcli.recipe import RecipeOptions
from lmkcli.settings import EncodeSettings, Offline

if TYPE_CHECKING:
    from lmkcli.store.tokens import Tokens

LENGTHS = (512, 2048, 8192, 32768)
GRANULARITIES = (32, 64, 128, 256)


@over_groups("source")
@with_flags
def tokenize(
    model: options.Model,
    source: Annotated[
        str | None, typer.Argument(metavar="[COLLECTION]", help="What to tokenize.")
    ] = None,
    output: options.Output = None,
    show: Annotated[
        str | None, typer.Option(help="Print how this one text is placed, and write nothing.")
    ] = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    pool: options.Pool = "auto",
    gran: options.Gran = None,
    unit: options.Unit = None,
    window: options.Window = None,
    overlap: options.Overlap = None,
    max_length: options.MaxLength = None,
    doc_prompt: options.DocPrompt = None,
    fields: options.Fields = "",
    map_ids: options.MapIds = False,
    store_text: options.StoreText = True,
    shard: options.ShardOption = "0/1",
    offline: Offline = False,
    if_exists: options.IfExistsOption = IfExists.resume,
    json: options.Json = False,
) -> None:
    """Documents to content token ids and offsets, once for all poolers with the same tokenizer.

    Prints length statistics: what would be cut at which length, and what landmarks cost. The pooler
    matters only for --show and for --gran sentence, where each sentence is tokenized by itself.
    """
    from lmkcli.encoding import jobs
    from lmkcli.store.tokens import Tokens

    wishes = RecipeOptions(
        model=model, revision=revision, trust_remote_code=trust_remote_code, pool=pool, gran=gran,
        unit=unit, window=window, overlap=overlap, max_length=max_length, doc_prompt=doc_prompt,
    )  # fmt: skip
    if show is not None:
        return _show(show, wishes, source, output, offline, json)
    if source is None:
        raise UsageError("give a collection to tokenize, or a text with --show")
    job = jobs.plan(
        options.with_fields(source, fields, map_ids),
        wishes,
        EncodeSettings(store_text=store_text),
        shard,
        offline,
    )
    folder = options.need(output, "-o/--output", "tokens/")
    options.prepare_output(folder, if_exists, job.shard.count)
    with console.progress("tokenize") as progress, console.stoppable() as stopping:
        jobs.run_tokenize(job, folder, progress, stopping)
    tokens = Tokens(folder)
    if job.shard.count == 1:
        note_differences(job.origin["name"], docs=len(tokens.lengths()))
    print_lengths(tokens, json)


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


def _show(
    text: str,
    wishes: RecipeOptions,
    source: str | None,
    output: Path | None,
    offline: bool,
    json: bool,
) -> None:
    if source is not None or output is not None:
        raise UsageError(
            "--show prints one text and writes nothing; drop the collection and --output"
        )
    from lmkcli.encoding.encoder import make_placer
    from lmkcli.encoding.resolving import resolve
    from lmkcli.models.tokenizer import open_tokenizer

    resolved = resolve(wishes, offline)
    side = resolved.recipe.doc
    tokenizer = open_tokenizer(resolved.folder, side)
    placer = make_placer(side, tokenizer.layout)
    made = tokenizer([text])[0]
    placed = placer.place(placer.content(made.ids, made.prompt, made.ends))
    lost = len(made.ids) - placed.kept
    if json:
        inputs = [
            {
                "ids": one.ids.tolist(),
                "tokens": tokenizer.tokens(one.ids),
                "marks": one.marks.tolist(),
                "vectors": one.groups.tolist(),
            }
            for one in placed.inputs
        ]
        return console.plain_json({"inputs": inputs, "vectors": placed.vectors, "lost": lost})
    for one in placed.inputs:
        marked = set() if side.pool == "model" else set(one.marks.tolist())
        tokens = tokenizer.tokens(one.ids)
        print(" ".join(f"«{token}»" if i in marked else token for i, token in enumerate(tokens)))
    positions, marks = (
        sum(len(part) for part in parts)
        for parts in zip(*((one.ids, one.marks) for one in placed.inputs), strict=True)
    )
    averaged = f"«marked»: {marks} positions whose states are averaged to "
    console.note(
        f"{_count(len(placed.inputs), 'input')} of {positions} positions: {placed.kept} of "
        f"{len(made.ids)} content tokens; {'' if side.pool == 'model' else averaged}"
        + _count(placed.vectors, "vector")
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
