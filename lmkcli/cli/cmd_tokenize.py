"""lmk tokenize: documents to token ids, with length statistics; --show places one text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmkcli.cli import console, options
from lmkcli.cli.options import IfExists
from lmkcli.errors import UsageError
from lmkcli.recipe import EncodeSettings, Wishes

if TYPE_CHECKING:
    from lmkcli.tokens import Tokens

LENGTHS = (512, 2048, 8192, 32768)
GRANULARITIES = (32, 64, 128, 256)


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
    max_length: options.MaxLength = None,
    doc_prompt: options.DocPrompt = None,
    fields: options.Fields = "",
    map_ids: options.MapIds = False,
    store_text: options.StoreText = True,
    shard: options.ShardOption = "0/1",
    offline: options.Offline = False,
    if_exists: options.IfExistsOption = IfExists.resume,
    json: options.Json = False,
) -> None:
    """Documents to content token ids and offsets, once for all poolers with the same tokenizer.

    Prints length statistics: what would be cut at which length, and what landmarks cost. The pooler
    matters only for --show and for --gran sentence, where each sentence is tokenized by itself.
    """
    from lmkcli import jobs
    from lmkcli.tokens import Tokens

    wishes = Wishes(
        model=model, revision=revision, trust_remote_code=trust_remote_code, pool=pool, gran=gran,
        max_length=max_length, doc_prompt=doc_prompt,
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
    options.prepare_output(folder, if_exists)
    with console.progress("tokenize") as progress, console.stoppable() as stopping:
        jobs.run_tokenize(job, folder, progress, stopping)
    print_lengths(Tokens(folder), json)


def print_lengths(tokens: "Tokens", json: bool) -> None:
    """Length statistics of a tokens folder."""
    facts = _statistics(tokens)
    if json:
        return console.plain_json({"tokens": str(tokens.folder), **facts})
    rows = [
        [key, f"{value:.1%}" if isinstance(value, float) and key != "mean" else _whole(value)]
        for key, value in facts.items()
    ]
    console.table([str(tokens.folder), ""], rows, console.Format.table)


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
    text: str, wishes: Wishes, source: str | None, output: Path | None, offline: bool, json: bool
) -> None:
    if source is not None or output is not None:
        raise UsageError(
            "--show prints one text and writes nothing; drop the collection and --output"
        )
    from lmkcli.encoder import make_placer, resolve
    from lmkcli.models.tokenizer import open_tokenizer

    resolved = resolve(wishes, offline)
    side = resolved.recipe.doc
    tokenizer = open_tokenizer(resolved.folder, side)
    placer = make_placer(side, tokenizer.layout)
    made = tokenizer([text])[0]
    placed = placer.place(placer.content(made.ids, made.prompt, made.ends))
    tokens = tokenizer.tokens(placed.input_ids)
    marked = set(placed.marks.tolist())
    if json:
        return console.plain_json(
            {
                "ids": placed.input_ids.tolist(),
                "tokens": tokens,
                "marks": sorted(marked),
                "lost": len(made.ids) - placed.kept,
            }
        )
    print(" ".join(f"«{token}»" if i in marked else token for i, token in enumerate(tokens)))
    console.note(
        f"{len(tokens)} positions: {placed.kept} of {len(made.ids)} content tokens; "
        f"«marked»: {len(marked)} positions whose states are averaged"
    )
