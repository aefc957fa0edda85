"""Encoder: tokenizer + model + pooler, described by one side of a Recipe. Text in, vectors out."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli import catalog
from lmkcli.collection import Collection, Query, Shard
from lmkcli.encoding import Encoded, Source
from lmkcli.errors import DataError, Mismatch, UsageError
from lmkcli.models.folder import EMBEDDED, ModelFolder, read_model
from lmkcli.models.heads import open_heads
from lmkcli.models.tokenizer import Tokenizer, open_tokenizer
from lmkcli.models.transformer import length_limit
from lmkcli.packing import packs
from lmkcli.placement import Layout, Placement, Placer, Pooler
from lmkcli.pooling import pool
from lmkcli.progress import Note, mute
from lmkcli.recipe import EncodeSettings, Recipe, Side, Wishes
from lmkcli.streams import ahead
from lmkcli.tokens import Report, TokenRow, Tokens, tokenized

BUFFER_PACKS = 32  # packs' worth of tokens that are sorted by length together
CPU_STATES = (
    1_572_864  # numbers in a pack's states: 4,096 positions 384 wide, 2,048 positions 768 wide
)
GPU_POSITIONS = 65_536


class Resolved(NamedTuple):
    """A recipe and, for people, where each of its choices came from."""

    recipe: Recipe
    folder: ModelFolder
    notes: list[str]


def resolve(wishes: Wishes, offline: bool = False) -> Resolved:
    """The recipe that a model folder and a user's wishes make together (DESIGN §6, `--pool auto`)."""
    folder = read_model(wishes.model, wishes.revision, offline)
    notes = (
        [] if folder.pool else [f"{folder.name} declares no pooling: this is a guess, set --pool"]
    )
    pool_name = (
        wishes.pool
        if wishes.pool != "auto"
        else folder.pool or ("last" if folder.causal else "mean")
    )
    similarity = folder.similarity
    normalize = (
        wishes.normalize
        if wishes.normalize is not None
        else folder.normalize or similarity == "cosine"
    )
    if similarity == "cosine" and not normalize:
        raise UsageError(
            f"{folder.name} is scored by cosine, so its vectors must be normalised; drop --no-normalize"
        )
    doc_length, query_length = _lengths(wishes, folder)
    doc = Side(
        model=wishes.model if folder.revision or wishes.model == EMBEDDED else str(folder.path),
        revision=folder.revision,
        weights=folder.weights_digest,
        tokenizer=folder.tokenizer_digest,
        trust_remote_code=wishes.trust_remote_code,
        prompt=_first(wishes.doc_prompt, folder.doc_prompt),
        max_length=doc_length,
        pool=pool_name,
        gran=granularity(pool_name, wishes.gran),
        include_prompt=folder.include_prompt,
        append_eos=pool_name == "last" and not folder.pool and folder.causal,
        dim=wishes.dim or 0,
        normalize=normalize,
        similarity="dot" if similarity == "dot" else "cosine",
    )
    query = replace(
        doc,
        prompt=_first(wishes.query_prompt, folder.query_prompt),
        max_length=query_length,
    )
    return Resolved(Recipe(doc, query), folder, notes)


def _first(wish: str | None, declared: str) -> str:
    return declared if wish is None else wish


def _lengths(wishes: Wishes, folder: ModelFolder) -> tuple[int, int]:
    """Positions of a document's and a query's input: wishes must fit, declarations are cut to fit."""
    limit = length_limit(folder, wishes.trust_remote_code)
    for flag, wish in (
        ("--max-length", wishes.max_length),
        ("--query-max-length", wishes.query_max_length),
    ):
        if wish and wish > limit:
            raise UsageError(f"{flag} {wish}: {folder.name} has {limit} positions")
    doc = wishes.max_length or min(folder.max_length or folder.positions or 512, limit)
    return doc, wishes.query_max_length or doc


def open_pooler(name: str) -> Pooler:
    """The pooler of a name such as 'lmk' or 'mean@4'."""
    stem, at, step = name.partition("@")
    home = catalog.load(catalog.POOLERS, "mean@k" if stem == "mean" and at else name, "pooler")
    if not at:
        return home()  # type: ignore[no-any-return]
    if not step.isdigit() or int(step) < 1:
        raise UsageError(
            f"--pool {name}: write mean@k with a whole number k of at least 1, such as mean@8"
        )
    return home(int(step))  # type: ignore[no-any-return]


def granularity(pool_name: str, gran: str | None) -> str:
    """The granularity in its canonical spelling; UsageError when it is none, or has no effect."""
    chunked = open_pooler(pool_name).chunked
    if gran is None:
        if chunked:
            raise UsageError(
                f"--pool {pool_name} cuts text into chunks: say how long with --gran, for instance --gran 64"
            )
        return ""
    if not chunked:
        raise UsageError(
            f"--gran {gran} has no effect with --pool {pool_name}; drop it, or use --pool lmk"
        )
    if gran == "sentence" or (gran.isdigit() and int(gran) > 0):
        return gran if gran == "sentence" else str(int(gran))
    raise UsageError(f"--gran {gran}: write a number of tokens of at least 1, or 'sentence'")


def make_placer(side: Side, layout: Layout) -> Placer:
    """The placement arithmetic of one side."""
    return Placer(open_pooler(side.pool), layout, side.max_length, side.gran, side.include_prompt)


def check_folder(side: Side, folder: ModelFolder) -> None:
    """Mismatch when a model folder is not the one that a recipe was made with."""
    for what, here, there in (
        ("weights", folder.weights_digest, side.weights),
        ("tokenizer", folder.tokenizer_digest, side.tokenizer),
    ):
        if here != there:
            raise Mismatch(
                f"the {what} of {folder.name} ({here[:12]}) are not those that made these "
                f"vectors ({there[:12]}); give the original model with --model"
            )


class _Pack(NamedTuple):
    """Numbers of placements that went through the model together, and their vectors."""

    numbers: list[int]
    vectors: NDArray[np.float32]


@dataclass
class Encoder:
    """One side of a recipe, ready to run. Called with token rows, it returns their vectors."""

    side: Side
    tokenizer: Tokenizer
    placer: Placer
    model: Any
    heads: torch.nn.Module
    settings: EncodeSettings
    dim: int

    @property
    def buffer_tokens(self) -> int:
        """Content tokens that are sorted by length together; what memory is bounded by."""
        return self.settings.batch_tokens * BUFFER_PACKS

    def __call__(self, rows: list[TokenRow], report: Report) -> Encoded:
        """Vectors [len(rows), dim] float32 in the order of the rows, and the tokens kept of each."""
        contents = [self.placer.content(row.ids, row.prompt, row.ends) for row in rows]
        placements = [self.placer.place(content) for content in contents]
        vectors = np.empty((len(rows), self.dim), np.float32)
        done = 0
        for pack in self._encoded(placements, [row.doc.id for row in rows], report.note):
            vectors[pack.numbers] = pack.vectors
            done += sum(len(contents[i].ids) for i in pack.numbers)
            report.progress(done, None, "tokens")
            report.check_stop()
        return Encoded(vectors, [placement.kept for placement in placements])

    def queries(self, queries: list[Query]) -> NDArray[np.float32]:
        """Vectors [len(queries), dim] of query texts."""
        texts = self.tokenizer([query.text for query in queries])
        contents = [self.placer.content(t.ids, t.prompt, t.ends) for t in texts]
        placements = [self.placer.place(content) for content in contents]
        vectors = np.empty((len(queries), self.dim), np.float32)
        for pack in self._encoded(placements, [query.id for query in queries], mute):
            vectors[pack.numbers] = pack.vectors
        _check_finite(vectors, queries)
        return vectors

    def _encoded(self, placements: list[Placement], ids: list[str], note: Note) -> Iterator[_Pack]:
        """All packs with their vectors; where memory runs out, the rest goes in packs half as large."""
        left = self._packs(placements, list(range(len(placements))))
        while left:
            pack, *rest = left
            made = self._tried([placements[i] for i in pack])
            if made is None:
                self._halve([len(placements[i].input_ids) for i in pack], ids[pack[0]], note)
                left = self._packs(placements, sorted(i for p in left for i in p))
            else:
                yield _Pack(pack, made)
                left = rest

    def _packs(self, placements: list[Placement], numbers: list[int]) -> list[list[int]]:
        lengths = [len(placements[i].input_ids) for i in numbers]
        tokens, size = self.settings.batch_tokens, self.settings.batch_size
        made = packs(lengths, tokens, size, not self.model.packed)
        return [[numbers[i] for i in pack] for pack in made]

    def _tried(self, placements: list[Placement]) -> NDArray[np.float32] | None:
        try:
            return self._vectors(placements)
        except torch.OutOfMemoryError:
            return None  # what the traceback held is free by the time that it is tried again

    def _halve(self, lengths: list[int], longest: str, note: Note) -> None:
        if len(lengths) == 1:
            raise DataError(
                f"{longest} alone, with {lengths[0]} positions, does not fit into the memory of "
                f"{self.model.device}; lower --max-length, or use --dtype bf16 or another device"
            )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        taken = sum(lengths) if self.model.packed else max(lengths) * len(lengths)
        budget = max(1, min(taken, self.settings.batch_tokens) // 2)
        note(
            f"out of memory on {self.model.device}: going on with {budget} positions a pass "
            f"(--batch-tokens {budget} says so from the start)"
        )
        self.settings = replace(self.settings, batch_tokens=budget)

    def _vectors(self, placements: list[Placement]) -> NDArray[np.float32]:
        """states -> pool -> sentence modules -> cut to dim -> normalise (DESIGN §2.1, fixed order)."""
        states = self.model.states([placement.input_ids for placement in placements])
        marks, groups = _marks(placements)
        with torch.inference_mode():
            vectors = pool(
                states, marks.to(states.device), groups.to(states.device), len(placements)
            )
            vectors = self.heads(vectors)[:, : self.dim]
            if self.side.normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return vectors.cpu().numpy()


def _marks(placements: list[Placement]) -> tuple[torch.Tensor, torch.Tensor]:
    """Marks in the packed states, and the number of the placement that each belongs to."""
    starts = np.cumsum([0, *(len(placement.input_ids) for placement in placements[:-1])])
    marks = [placement.marks + start for placement, start in zip(placements, starts, strict=True)]
    groups = np.repeat(np.arange(len(placements)), [len(mark) for mark in marks])
    return torch.from_numpy(np.concatenate(marks).astype(np.int64)), torch.from_numpy(groups)


def _check_finite(vectors: NDArray[np.float32], queries: list[Query]) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise DataError(
            f"the vector of query {queries[bad[0]].id} has values that are not finite; try --dtype fp32"
        )


def open_encoder(side: Side, folder: ModelFolder, settings: EncodeSettings) -> Encoder:
    """Loads what one side needs; UsageError or Mismatch when it cannot work as the recipe says."""
    check_folder(side, folder)
    tokenizer = open_tokenizer(folder, side)
    placer = make_placer(side, tokenizer.layout)
    open_model = catalog.load(catalog.MODELS, "transformer", "model kind")
    model = open_model(folder, settings.dtype, settings.device, side.trust_remote_code)
    if side.max_length > model.limit:
        raise UsageError(
            f"--max-length {side.max_length}: {folder.name} has {model.limit} positions"
        )
    heads = open_heads(folder, model.device)
    whole = _width(heads, model.dim)
    if side.dim > whole:
        raise UsageError(f"--dim {side.dim}: {folder.name} makes vectors of {whole} components")
    if not settings.batch_tokens:
        settings = replace(settings, batch_tokens=_pack_size(model))
    return Encoder(side, tokenizer, placer, model, heads, settings, side.dim or whole)


def _pack_size(model: Any) -> int:
    """Positions per forward pass: on a CPU what caches and the allocator bear, on a GPU what fills it."""
    return GPU_POSITIONS if model.device.type == "cuda" else max(512, CPU_STATES // model.dim)


def _width(heads: torch.nn.Module, dim: int) -> int:
    with torch.inference_mode():
        device = next(heads.parameters(), torch.zeros(1)).device
        return int(heads(torch.zeros(1, dim, device=device)).shape[-1])


def token_source(
    given: Collection | Tokens, tokenizer: Tokenizer, shard: Shard, skip: int
) -> Source:
    """Token rows of one shard from `skip` on: tokenized on the fly in the background, or read."""
    if isinstance(given, Tokens):
        rows = shard.rows(given.docs)
        return Source(ahead(given.rows(rows.start + skip, rows.stop), 2), lambda: None)
    docs = given.docs(shard)
    return Source(ahead(tokenized(docs, tokenizer, skip), 2), lambda: docs.fraction)
