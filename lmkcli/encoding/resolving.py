"""Resolving: the recipe that a model folder and a user's options make together."""

import os
from dataclasses import replace
from typing import NamedTuple

from lmkcli.encoding import asking
from lmkcli.encoding.asking import (
    check_unit,
    granularity,
    open_pooler,
    pooler_package,
    read_context,
    read_overlap,
    read_window,
)
from lmkcli.errors import UsageError
from lmkcli.models.finding import OWN_NAMES, check_revision, read_model
from lmkcli.models.folder import NO_LIMIT, ModelFolder
from lmkcli.recipe import ROTARY, EncoderConfig, Recipe, RecipeOptions


class Resolved(NamedTuple):
    """A recipe and, for people, where each of its choices came from."""

    recipe: Recipe
    folder: ModelFolder
    notes: list[str]


def resolve(options: RecipeOptions, offline: bool = False) -> Resolved:
    """The recipe that a model folder and a user's options make together (`--pool auto`)."""
    asking.check(options)
    folder = read_model(options.model, options.revision, offline)
    check_revision(folder, options.revision)
    guessed = options.pool == "auto" and not folder.pool
    notes = [f"{folder.name} declares no pooling: this is a guess, set --pool"] if guessed else []
    normalize = _normalize(options.normalize, folder)
    pad_to_max = _pad_to_max(options.pad_to_max, folder)
    pool = options.pool if options.pool != "auto" else _declared_pool(folder)
    unit = options.unit or ("token" if folder.late else "doc")
    window = read_window(options.window or _declared_window(options, folder, pool, unit))
    pooler = open_pooler(pool)
    _check_model(pool, folder)
    check_unit(pool, pooler, unit, window)
    gran = granularity(pool, _gran(options, folder), unit, window)
    overlap = read_overlap(options.overlap, window, gran)
    context = read_context(options.context or "", unit, window)
    lengths = _lengths(options, folder, window)  # last: it may have to open the model
    doc = EncoderConfig(
        model=_named(options.model, folder),
        revision=folder.revision,
        weights=folder.weights_digest,
        tokenizer=folder.tokenizer_digest,
        trust_remote_code=options.trust_remote_code,
        prompt=_first(options.doc_prompt, folder.doc_prompt),
        max_length=lengths.doc,
        pool=pool,
        pool_package=pooler_package(pool),
        gran=gran,
        unit=unit,
        window=window,
        overlap=overlap,
        context=context,
        extend=lengths.extend,
        include_prompt=folder.include_prompt,
        append_eos=folder.append_eos or (pool == "last" and not folder.pool and folder.causal),
        pad_to_max=pad_to_max,
        dim=options.dim or 0,
        normalize=normalize,
        similarity="dot" if folder.similarity == "dot" else "cosine",
    )
    asked = _first(options.query_prompt, folder.query_prompt)
    query = _query_side(doc, asked, lengths.query, pooler.chunked)
    return Resolved(_late(Recipe(doc, query), folder), folder, notes)


def _query_side(doc: EncoderConfig, prompt: str, length: int, chunked: bool) -> EncoderConfig:
    """Queries go whole through the model that documents go through."""
    return replace(
        doc,
        prompt=prompt,
        max_length=length,
        gran=doc.gran if chunked else "",
        unit="token" if doc.unit == "token" else "doc",
        window="full",
        overlap=0,
        context="",
    )


def _named(model: str, folder: ModelFolder) -> str:
    """What finds the model again from any directory."""
    by_name = folder.revision or model in OWN_NAMES
    return model if by_name else os.path.abspath(os.path.expanduser(model))


def _declared_pool(folder: ModelFolder) -> str:
    return folder.pool or ("last" if folder.causal else "mean")


def _gran(options: RecipeOptions, folder: ModelFolder) -> str | None:
    """What was asked for; else, with the folder's own pooling, what the folder declares."""
    return options.gran or (folder.gran if options.pool == "auto" else "") or None


def _declared_window(options: RecipeOptions, folder: ModelFolder, pool: str, unit: str) -> str:
    """What the folder declares of one vector by its own pooling, unless a length is asked for."""
    own = unit == "doc" and pool == folder.pool and not options.max_length and not options.extend
    return (folder.window if own else "") or "full"


def _first(asked: str | None, declared: str) -> str:
    return declared if asked is None else asked


def _normalize(asked: bool | None, folder: ModelFolder) -> bool:
    cosine = folder.similarity == "cosine"
    if asked is None:
        return folder.normalize or cosine
    if cosine and not asked:
        raise UsageError(
            f"{folder.name} is scored by cosine, so its vectors must be normalised; drop --no-normalize"
        )
    return asked


def _pad_to_max(asked: bool | None, folder: ModelFolder) -> bool:
    if asked is not None and not folder.sees_padding:
        raise UsageError(
            f"--pad-to-max has no effect with {folder.name}, whose vectors do not depend on padding"
        )
    return folder.sees_padding if asked is None else asked


def _late(recipe: Recipe, folder: ModelFolder) -> Recipe:
    """The two sides of a late-interaction folder in PyLate's layout."""
    late = folder.late
    if late is None:
        return recipe
    doc = replace(recipe.doc, prefix_token=late.doc_prefix_id)
    query = replace(recipe.query, prefix_token=late.query_prefix_id)
    if recipe.doc.unit == "token":
        doc = replace(doc, skip=late.skip)
        query = replace(query, expansion=late.expansion_id, attend_expansion=late.attend_expansion)
    return Recipe(doc, query)


def _check_model(pool: str, folder: ModelFolder) -> None:
    own = folder.pool == "model"
    if own and pool != "model":
        raise UsageError(
            f"{folder.name} makes one vector by itself, so there are no states for --pool {pool}; "
            "drop --pool"
        )
    if pool == "model" and not own:
        raise UsageError(f"{folder.name} makes no vector by itself; use --pool mean or cls")


class _Lengths(NamedTuple):
    """Positions of one input of a document and of a query, and how positions were extended."""

    doc: int
    query: int
    extend: str


def _lengths(options: RecipeOptions, folder: ModelFolder, window: str) -> _Lengths:
    """Lengths asked for must fit, declared ones are cut to fit; a window is the length of its inputs."""
    limit, spelling = _limit(options, folder, window)
    flag = "--window" if window.isdigit() else "--max-length"
    asked = int(window) if window.isdigit() else options.max_length
    for name, length in ((flag, asked), ("--query-max-length", options.query_max_length)):
        if length and length > limit:
            raise UsageError(
                f"{name} {length}: {folder.name} has {limit} positions"
                + _longer(name, folder, spelling)
            )
    declared = min(folder.max_length or folder.positions or 512, limit)
    query = options.query_max_length or _query_length(options, folder, limit)
    return _Lengths(asked or declared, query, spelling)


def _longer(flag: str, folder: ModelFolder, spelling: str) -> str:
    """What lets a document be longer than the positions of its model."""
    stretch = "--extend can stretch them" if folder.kind == "transformer" and not spelling else ""
    window = "--window reads longer texts in pieces" if flag == "--max-length" else ""
    advice = ", or ".join(filter(None, (stretch, window)))
    return f"; {advice}" if advice else ""


def _query_length(options: RecipeOptions, folder: ModelFolder, limit: int) -> int:
    """A declared length of queries, else that of documents; a window's only where it is longer."""
    if folder.query_length:
        return min(folder.query_length, limit)
    declared = min(folder.max_length or folder.positions or 512, limit)
    return options.max_length or declared


def _limit(options: RecipeOptions, folder: ModelFolder, window: str) -> tuple[int, str]:
    """The positions that a model allows, extended where that is asked for; and how that is spelled."""
    limit = folder.limit or _opened_limit(folder, options.trust_remote_code)
    if not options.extend:
        return limit, ""
    length = int(window) if window.isdigit() else options.max_length or 0
    _check_extension(options.extend, folder, limit, length)
    from lmkcli.models import extend  # here, after all that can be said without torch

    return extend.extended_limit(limit, options.extend, length), f"{options.extend}:{length}"


def _opened_limit(folder: ModelFolder, trust: bool) -> int:
    """The positions of a model whose configuration does not tell."""
    if folder.kind != "transformer":
        return folder.positions or NO_LIMIT
    from lmkcli.models.transformer import length_limit

    return length_limit(folder, trust)


def _check_extension(how: str, folder: ModelFolder, limit: int, length: int) -> None:
    """UsageError for an extension that is not this model's, or not needed."""
    if folder.kind != "transformer":
        raise UsageError(f"--extend {how}: the positions of {folder.name} do not stretch")
    if how in ROTARY and limit < NO_LIMIT:
        raise UsageError(
            f"--extend {how} is for rotary positions, and {folder.name} has a table of {limit}; "
            "use --extend grouped, interpolate or recurrent"
        )
    if length <= limit and how not in ROTARY:
        has = f"{limit} positions" if limit < NO_LIMIT else "rotary positions, which have no end"
        raise UsageError(f"--extend {how} has no effect: {folder.name} has {has}; drop it")
