"""Resolution of recipes: the options of a user and the declarations of a model folder make one recipe.

`check_options` finds the mistakes that need no model; `resolve` reads the model folder, too. Nothing here
imports torch, so mistakes are reported at once.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from lmkcli import catalog
from lmkcli.data import contexts
from lmkcli.encoding.representation import Representation
from lmkcli.errors import UsageError
from lmkcli.models.lookup import OWN_NAMES, check_revision, read_model
from lmkcli.models.model_folder import NO_LIMIT, TRANSFORMER, WORD_WEIGHTS, ModelFolder
from lmkcli.pooling.table import Pooler, concatenated
from lmkcli.spec.recipe import (
    POOLER_OPTIONS,
    ROTARY,
    EncoderConfig,
    Recipe,
    RecipeOptions,
    setting_types,
)
from lmkcli.spec.values import (
    EACH_CHUNK,
    FULL,
    NO_OVERLAP,
    WHOLE_TEXT,
    Granularities,
    Granularity,
    Overlap,
    Window,
    is_count,
)

UNDECLARED = 512  # positions, of a model that declares no length
_Option = TypeVar("_Option")
_DECLARED_GRAN = "given"  # replaces a granularity that the model folder may declare


# Options: what can be checked without a model.


def check_options(options: RecipeOptions) -> None:
    """Raise UsageError for options that are wrong for every model."""
    window = options.window or FULL
    if window.positions and options.max_length not in (None, window.positions):
        raise UsageError(
            f"--window {window} sets the length of the inputs of a document, and lmk reads all of the "
            f"document; drop --max-length {options.max_length} (queries have --query-max-length)"
        )
    declared = options.pool == "auto"
    check_overlap(options.overlap, window, options.gran or (_DECLARED_GRAN if declared else ""))
    read_context(options.context or "", options.unit or "doc", window)
    if options.extend and not (options.max_length or window.positions):
        raise UsageError(f"--extend {options.extend} needs the new length; add --max-length")
    if not declared:
        unit = options.unit or "doc"
        check_unit(options.pool, open_pooler(options.pool), unit, window)
        check_gran(options.pool, options.gran.single if options.gran else None, unit, window)


def check_grans(options: RecipeOptions) -> None:
    """Check the options of a training.

    --gran can be a list: each text gets one of its values. The new folder only declares --window.
    """
    for gran in options.gran.values if options.gran else (None,):
        check_options(replace(options, gran=Granularities(gran) if gran else None, window=None))


def check_overlap(overlap: Overlap | None, window: Window, gran: str) -> Overlap:
    """Return the overlap, by default none. Raises UsageError if it has no effect or is too large."""
    if overlap is None:
        return NO_OVERLAP
    if not window.positions or window.even:
        number = window.positions or "N"
        raise UsageError(f"--overlap has no effect with --window {window}; use --window {number}")
    if overlap.endswith("c") and not gran:
        raise UsageError(f"--overlap {overlap} counts chunks; define the chunks with --gran")
    if overlap.tokens >= window.positions:
        raise UsageError(f"--overlap {overlap} must be smaller than --window {window}")
    return overlap


def read_context(how: str, unit: str, window: Window) -> str:
    """Return the setting of contexts. Raises UsageError if it is invalid or has no effect."""
    if fault := contexts.invalid_reason(how):
        raise UsageError(f"--context {how}: {fault}")
    if how and window != "chunk":
        raise UsageError(
            f"--context {how} is for chunks that are encoded separately; add --window chunk (with --window "
            f"{window} the model reads the text around a chunk anyway)"
        )
    if how and unit == "token":
        raise UsageError(
            f"--context {how}: with --unit token, the tokens of the context would become vectors of every "
            "chunk; use --unit chunk"
        )
    return how


def pooler_package(pool: str) -> str:
    """Return the package of a pooler, such as 'lmk-head 0.1.0'; empty for the poolers of lmk."""
    providers = (catalog.pooler_row(name).provider for name in pool.split("+"))
    return next(filter(None, providers), "")


def open_pooler(pool: str) -> Pooler:
    """Return the row of a pooler such as 'lmk', 'mean@4' or 'cls+mean', a concatenation.

    Raises UsageError for an invalid parameter, and for poolers that cannot be concatenated. The parameter of
    NAME@k is a whole number of at least 1. Other functions of a parameter get its text, and raise ValueError
    with a hint.
    """
    if "+" in pool:
        try:
            return concatenated([open_pooler(name) for name in pool.split("+")])
        except ValueError as error:
            raise UsageError(f"--pool {pool}: {error}") from None
    name = catalog.pooler_row(pool).name
    found = catalog.POOLERS.load(name)
    stem, at, parameter = pool.partition("@")
    if at:
        row: Callable[[str | int], object] = found
        if name == f"{stem}@k" and not is_count(parameter):
            raise UsageError(
                f"--pool {pool}: write {stem}@k with a whole number k of at least 1, such as {stem}@8"
            )
        try:
            found = row(int(parameter) if name == f"{stem}@k" else parameter)
        except ValueError as error:
            raise UsageError(f"--pool {pool}: {error}") from None
    if not isinstance(found, Pooler):
        provider = pooler_package(pool) or catalog.POOLERS[name].target
        raise UsageError(
            f"--pool {pool}: {provider} provides a {type(found).__name__}; lmk needs a row "
            "lmkcli.pooling.table.Pooler; update the package"
        )
    if found.module and not catalog.POOLERS[name].weights:
        raise UsageError(
            f"--pool {pool}: {pooler_package(pool)} does not declare the folder of its weights "
            "(PoolerRow.weights), so no model can contain them; update the package"
        )
    return found


def lacks_weights(pool: str, folder: ModelFolder) -> bool:
    """Return whether a pooler has weights of its own, and the folder does not contain them."""
    weights = catalog.pooler_row(pool).weights
    return bool(weights) and not (folder.path / weights).is_dir()


def representation_of(pool: str) -> Representation[Any]:
    """Return how the states at the marked positions of a pooler become vectors."""
    module, attribute = open_pooler(pool).representation.split(":")
    representation: Representation[Any] = getattr(import_module(module), attribute)
    return representation


def check_unit(pool: str, pooler: Pooler, unit: str, window: Window) -> None:
    """Raise UsageError for a combination of pool, unit and window that has no meaning."""
    if unit != "doc" and pooler.per == "model" and (unit, window) != ("chunk", "chunk"):
        raise UsageError(
            f"--unit {unit}: the model makes one vector from an input and has no states of its tokens; for a "
            "vector per chunk use --unit chunk --gran 256 --window chunk"
        )
    representation_of(pool).check_unit(pool, unit)
    if unit == "token" and pooler.per != "token":
        raise UsageError(
            f"--unit token needs the states of all tokens, and --pool {pool} combines them; use --pool mean"
        )
    if unit == "chunk" and window != "chunk" and pooler.per in ("input", "step"):
        reason = (
            "makes one vector of an input"
            if pooler.per != "step"
            else "marks every k-th position, so a chunk may have no mark"
        )
        raise UsageError(
            f"--pool {pool} {reason}: for a vector per chunk embed each chunk separately with "
            "--window chunk, or use --pool mean, lmk or multicls"
        )


def check_gran(
    pool: str, gran: Granularity | None, unit: str = "doc", window: Window = FULL
) -> Granularity:
    """Return the granularity. Raises UsageError if it is missing, or has no effect."""
    needed = [
        text
        for text, needs_chunks in (
            (f"--pool {pool}", open_pooler(pool).chunked),
            ("--unit chunk", unit == "chunk"),
            ("--window chunk", window == "chunk"),
        )
        if needs_chunks
    ]
    if gran is None:
        if needed:
            raise UsageError(
                f"{needed[0]} cuts text into chunks; set their length with --gran, for instance --gran 64"
            )
        return WHOLE_TEXT
    if not needed and not window.positions and (unit, gran) != ("token", "given"):
        raise UsageError(
            f"--gran {gran} has no effect with --pool {pool}, --unit {unit} and --window {window}; "
            "drop it, or use --pool lmk or --unit chunk"
        )
    return gran


# Recipes: options together with a model folder.


class ResolvedRecipe(NamedTuple):
    """A recipe, its model folder, and notes for people about choices that were guessed."""

    recipe: Recipe
    folder: ModelFolder
    notes: list[str]


def resolve(
    options: RecipeOptions, offline: bool = False, folder: ModelFolder | None = None
) -> ResolvedRecipe:
    """Return the recipe for a model folder and options. Options take precedence over the folder.

    `folder` is the folder of the model, if it has been read before. Raises UsageError for options that the
    model cannot follow.
    """
    check_options(options)
    folder = folder or read_model(options.model, options.revision, offline)
    check_revision(folder, options.revision)
    _check_vectors(folder)
    notes = _notes(options, folder)
    if options.pad_to_max is not None and not folder.row.sees_padding:
        raise UsageError(
            f"--pad-to-max has no effect with {folder.name}: its vectors do not depend on padding"
        )
    pool = options.pool
    if pool == "auto":
        pool = folder.pool or ("last" if folder.causal else "mean")
        catalog.check_installed(pool, folder.pool_package, folder.name)
    representation = representation_of(pool)
    folder = representation.declared(folder)
    _check_settings(options, pool)
    unit = options.unit or ("token" if folder.late else "doc")
    window = options.window or _declared_window(options, folder, unit)
    normalize = _normalize(options.normalize, folder)
    pooler = open_pooler(pool)
    _check_model(pool, pooler, folder)
    _check_word_weights(pool, pooler, folder)
    check_unit(pool, pooler, unit, window)
    declared_gran = folder.gran if options.pool == "auto" else ""
    requested = options.gran.single if options.gran else Granularity(declared_gran)
    gran = check_gran(pool, requested or None, unit, window)
    overlap = check_overlap(options.overlap, window, gran)
    representation.check(unit, window, options)
    context = read_context(options.context or "", unit, window)
    lengths = _lengths(options, folder, window)  # the last check, because it may open the model
    if unit == "doc" and not options.query_max_length and lengths.query < (options.max_length or 0):
        notes.append(  # a late-interaction query has its own length, to which it is filled up
            f"queries keep the {lengths.query} positions that {folder.name} declares; to read them like "
            f"documents, add --query-max-length {options.max_length}"
        )
    known = folder.max_length or folder.positions or options.max_length or window.positions
    if not known and folder.kind == TRANSFORMER and lengths.doc == UNDECLARED:
        notes.append(
            f"neither {folder.name} nor its tokenizer declares a length, so texts are cut at {UNDECLARED} "
            "positions; for another length, use --max-length"
        )
    by_name = folder.revision or options.model in OWN_NAMES
    doc = EncoderConfig(
        # a path that finds the model from every directory
        model=options.model if by_name else os.path.abspath(os.path.expanduser(options.model)),
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
        landmark_token=folder.landmark_token if pool == "lmk" and gran.tokens else None,
        append_eos=folder.append_eos or (pooler.appends_eos and not folder.pool and folder.causal),
        pad_to_max=_first(options.pad_to_max, folder.row.sees_padding),
        keep_space=_keeps_space(folder, pooler, representation),
        dim=options.dim or (0 if representation.of_terms else folder.dim),
        settings=representation.settings(options, query=False),
        normalize=normalize,
        similarity="dot" if folder.similarity == "dot" else "cosine",
    )
    query = replace(  # the same model and pooler read a query as a whole
        doc,
        prompt=_first(options.query_prompt, folder.query_prompt),
        max_length=lengths.query,
        gran=doc.gran if pooler.chunked else WHOLE_TEXT,
        unit="token" if doc.unit == "token" else "doc",
        window=FULL,
        overlap=NO_OVERLAP,
        context="",
        settings=representation.settings(options, query=True),
        static=representation.has_table(folder),
    )
    doc = replace(doc, prompt_apart=is_prompt_apart(doc, folder))
    if folder.late is not None:  # both sides of a late-interaction folder in PyLate's layout
        late = folder.late
        doc = replace(doc, prefix_token=late.doc_prefix_id)
        query = replace(query, prefix_token=late.query_prefix_id)
        if doc.unit == "token":
            # chunks that are read together keep all tokens (ConTEB, arXiv 2505.24782 App. B.2)
            together = doc.gran.splitter == "given" and window != EACH_CHUNK
            doc = replace(doc, skip=() if together else late.skip)
            query = replace(
                query, expansion=late.expansion_id, attend_expansion=late.attend_expansion
            )
    if folder.queries is not None:
        query = resolve(options, offline, folder.queries).recipe.query
    return ResolvedRecipe(Recipe(doc, query), folder, notes)


def is_prompt_apart(side: EncoderConfig, folder: ModelFolder) -> bool:
    """Return whether the prompt of a side belongs to no vector.

    One prompt stands before all chunks of an input, and belongs to none (ConTEB, §4.1, App. B.1).
    """
    several = side.unit == "chunk" and side.window != EACH_CHUNK
    marks_states = open_pooler(side.pool).marked == "every" and folder.word_weights is None
    return several and marks_states and bool(side.prompt)


def _check_vectors(folder: ModelFolder) -> None:
    """Raise UsageError for a cross-encoder."""
    if folder.cross_encoder:
        raise UsageError(
            f"{folder.name} is a cross-encoder, which scores pairs and makes no vectors; use it with lmk "
            "search --rerank-model"
        )


def _notes(options: RecipeOptions, folder: ModelFolder) -> list[str]:
    """Return notes on choices that were guessed, and on declarations of the folder."""
    notes = []
    if options.pool == "auto" and not folder.pool:
        notes.append(f"{folder.name} declares no pooling: this is a guess, set --pool")
    notes += unfit_poolers(folder, [options.pool])
    notes += folder.notes
    if folder.dim and not options.dim:
        notes.append(
            f"vectors have the first {folder.dim} dimensions, as {folder.name} declares (truncate_dim); for "
            "others, use --dim"
        )
    return notes


def unfit_poolers(folder: ModelFolder, pools: Iterable[str]) -> list[str]:
    """Return a note if some poolers differ from those that a model folder declares; else an empty list."""
    others = dict.fromkeys(pool for pool in pools if pool not in ("auto", *folder.poolers))
    if not folder.pool or not others:
        return []
    return [
        f"{folder.name} declares --pool {folder.pool}; expect lower scores with --pool {', '.join(others)}, "
        "until the model is trained for it (--pool auto follows the declaration)"
    ]


def _keeps_space(folder: ModelFolder, pooler: Pooler, representation: Representation[Any]) -> bool:
    """Return whether white space at the ends of texts is tokenized, as in sentence-transformers.

    Texts for a pooler that sentence-transformers lacks are stripped, unless the folder declares a pooling.
    Texts for a pooler with weights are stripped always: the folder of a trained one declares it.
    """
    known = bool(folder.pool or pooler.sentence_mode or representation.keeps_space)
    return known and not pooler.module and folder.keeps_space


def _check_settings(options: RecipeOptions, pool: str) -> None:
    """Raise UsageError for an option that belongs to other poolers (`PoolerRow.settings`).

    Also raises it for a pooler with options that its representation does not store.
    """
    groups = {row.name: setting_types(row.name).keys() for row in catalog.POOLERS.values()}
    own = setting_types(pool).keys()
    if own and type(representation_of(pool)).settings is Representation.settings:
        raise UsageError(
            f"--pool {pool} has the options {', '.join(sorted(own))}, and no recipe stores them; correct "
            f"the package {pooler_package(pool)} (Representation.settings)"
        )
    for name in POOLER_OPTIONS:
        value = getattr(options, name)
        if name not in own and value and value != getattr(RecipeOptions, name):  # the default
            users = [pooler for pooler, names in groups.items() if name in names]
            raise UsageError(
                f"--{name.replace('_', '-')} has no effect with --pool {pool}, only with --pool "
                f"{', '.join(users)}; drop it"
            )


def _first(option: _Option | None, declared: _Option) -> _Option:
    return declared if option is None else option


def _declared_window(options: RecipeOptions, folder: ModelFolder, unit: str) -> Window:
    """Return the window that the folder declares, else 'full'.

    The declaration applies only to one vector per text, with the length of the folder.
    """
    own = unit == "doc" and not options.max_length and not options.extend
    return Window((folder.window if own else "") or "full")


def _normalize(option: bool | None, folder: ModelFolder) -> bool:
    cosine = folder.similarity == "cosine"
    if option is None:
        return folder.normalize or cosine
    if cosine and not option:
        raise UsageError(
            f"{folder.name} is scored by cosine, so its vectors must be normalised; drop --no-normalize"
        )
    return option


def _check_word_weights(pool: str, pooler: Pooler, folder: ModelFolder) -> None:
    """Raise UsageError for weights of tokens with a pooler or a prompt for which lmk does not apply them."""
    if folder.word_weights is None:
        return
    if pooler.marked != "every" or pooler.k > 1 or pooler.module:
        raise UsageError(
            f"{folder.name} weights its tokens ({WORD_WEIGHTS}), which lmk does only for the mean or the "
            f"maximum of all states; drop --pool {pool}, or use --pool mean"
        )
    if not folder.include_prompt:
        raise UsageError(
            f"{folder.name} weights its tokens ({WORD_WEIGHTS}) and leaves out its prompt, which lmk does "
            "not support together; give another model"
        )


def _check_model(pool: str, pooler: Pooler, folder: ModelFolder) -> None:
    """Raise UsageError if the pooler needs states and the model has none, or the reverse."""
    if folder.makes_vector and pooler.per != "model":
        raise UsageError(
            f"{folder.name} makes one vector by itself, so there are no states for --pool {pool}; "
            "drop --pool"
        )
    if pooler.per == "model" and not folder.makes_vector:
        raise UsageError(f"{folder.name} makes no vector by itself; use --pool mean or cls")


class _Lengths(NamedTuple):
    """Positions of one input of a document and of a query, and the extension of positions."""

    doc: int
    query: int
    extend: str


def _lengths(options: RecipeOptions, folder: ModelFolder, window: Window) -> _Lengths:
    """Return the lengths of inputs. A window of N positions is the length of a document's inputs.

    Requested lengths must fit into the positions of the model; declared ones are reduced to fit.
    """
    limit = folder.limit or _limit_of_opened(folder, options.trust_remote_code)
    requested = window.positions if window.positions else options.max_length
    extend = ""
    if options.extend:
        _check_extension(options.extend, folder, limit, requested or 0)
        from lmkcli.models import extension  # here, because it imports torch

        limit = extension.extended_limit(limit, options.extend, requested or 0)
        extend = f"{options.extend}:{requested or 0}"
    of_doc = f"--window {window}" if window.positions else f"--max-length {requested}"
    of_query = f"--query-max-length {options.query_max_length}"
    for given, length in ((of_doc, requested), (of_query, options.query_max_length)):
        if length and length > limit:
            stretch = folder.kind == TRANSFORMER and not extend
            advice = ["--extend can stretch them"] if stretch else []
            if given.startswith("--max-length"):
                advice += ["--window reads longer texts in pieces"]
            raise UsageError(
                f"{given}: {folder.name} has {limit} positions"
                + (f"; {', or '.join(advice)}" if advice else "")
            )
    declared = min(folder.max_length or folder.positions or UNDECLARED, limit)
    query = options.query_max_length
    if not query and folder.query_length:
        query = min(folder.query_length, limit)
    # by default the length of documents, not the length of their windows
    return _Lengths(requested or declared, query or options.max_length or declared, extend)


def _limit_of_opened(folder: ModelFolder, trust: bool) -> int:
    """Return the positions of a model if its configuration does not contain them."""
    if folder.kind != TRANSFORMER:
        return folder.positions or NO_LIMIT
    from lmkcli.models.transformer import length_limit  # here, because it imports torch

    return length_limit(folder, trust)


def _check_extension(how: str, folder: ModelFolder, limit: int, length: int) -> None:
    """Raise UsageError for an extension that the model does not support or need."""
    if folder.kind != TRANSFORMER:
        raise UsageError(f"--extend {how}: the positions of {folder.name} cannot be extended")
    if how in ROTARY and limit < NO_LIMIT:
        raise UsageError(
            f"--extend {how} is for rotary positions, and {folder.name} has a table of {limit}; "
            "use --extend grouped, interpolate or recurrent"
        )
    if length <= limit and how not in ROTARY:
        has = f"{limit} positions" if limit < NO_LIMIT else "rotary positions without a limit"
        raise UsageError(f"--extend {how} has no effect: {folder.name} has {has}; drop it")
