"""Asking: what can be said of a recipe before a model is looked at, so that a mistake is answered at once."""

import re
from collections.abc import Callable
from dataclasses import replace

from lmkcli import catalog
from lmkcli.data import contexts
from lmkcli.errors import UsageError
from lmkcli.pooling.placement import SPLITTERS, Pooler
from lmkcli.recipe import EXTENSIONS, RecipeOptions, is_count

UNITS = ("doc", "chunk", "token")
_UNKNOWN = "given"  # stands for a granularity that the model's folder may declare


def check(options: RecipeOptions) -> None:
    """UsageError for what no model could mean; what depends on the model's folder is seen later."""
    window = read_window(options.window or "full")
    if window.isdigit() and options.max_length not in (None, int(window)):
        raise UsageError(
            f"--window {window} is the length of a document's inputs, and all of the document is "
            f"read; drop --max-length {options.max_length} (queries have --query-max-length)"
        )
    declared = options.pool == "auto"
    read_overlap(options.overlap, window, options.gran or (_UNKNOWN if declared else ""))
    read_context(options.context or "", options.unit or "doc", window)
    _check_extension(options.extend, options.max_length or window.isdigit())
    if options.unit is not None and options.unit not in UNITS:
        raise UsageError(f"--unit {options.unit}: write {', '.join(UNITS)}")
    if not declared:
        unit = options.unit or "doc"
        check_unit(options.pool, open_pooler(options.pool), unit, window)
        granularity(options.pool, options.gran or None, unit, window)


def check_grans(options: RecipeOptions) -> None:
    """The same of a training: --gran may be a list, of which each text is cut by one, and --window is
    what the model's folder will declare."""
    for gran in (options.gran or "").split(","):
        check(replace(options, gran=gran or None, window=None))


def _check_extension(how: str | None, length: int | bool) -> None:
    if how and how not in EXTENSIONS:
        raise UsageError(f"--extend {how}: write one of {', '.join(EXTENSIONS)}")
    if how and not length:
        raise UsageError(f"--extend {how}: say to what length with --max-length")


def read_window(window: str) -> str:
    """The window in its canonical spelling; UsageError when it is none."""
    if window in ("full", "chunk"):
        return window
    if is_count(window):
        return str(int(window))
    raise UsageError(f"--window {window}: write full, chunk, or a number of positions such as 512")


def read_overlap(overlap: str | int | None, window: str, gran: str) -> int | str:
    """Tokens, or chunks as '10c'; UsageError for what is neither, or has no effect."""
    if overlap is None:
        return 0
    match = re.fullmatch(r"(\d+)(c?)", str(overlap))
    if not match:
        raise UsageError(f"--overlap {overlap}: write tokens, such as 128, or chunks, such as 10c")
    if not window.isdigit():
        raise UsageError(f"--overlap has no effect with --window {window}; use --window N")
    if match[2]:
        if not gran:
            raise UsageError(f"--overlap {overlap} counts chunks; say what they are with --gran")
        return f"{int(match[1])}c"
    if int(match[1]) >= int(window):
        raise UsageError(f"--overlap {overlap} must be smaller than --window {window}")
    return int(match[1])


def read_context(how: str, unit: str, window: str) -> str:
    """What stands before chunks; UsageError where it is nothing known, or where none are alone."""
    if fault := contexts.fault_of(how):
        raise UsageError(f"--context {how}: {fault}")
    if how and window != "chunk":
        raise UsageError(
            f"--context {how} stands before each chunk that is embedded alone: add --window chunk; with "
            f"--window {window} the model sees what is around a chunk itself"
        )
    if how and unit == "token":
        raise UsageError(
            f"--context {how}: with --unit token its tokens would be vectors again in each chunk; use "
            "--unit chunk"
        )
    return how


def _row(pool: str) -> str:
    """The name of a pooler in the catalog: 'mean@4' is 'mean@k'."""
    stem, at, _ = pool.partition("@")
    return f"{stem}@k" if at and f"{stem}@k" in catalog.POOLERS else pool


def pooler_package(name: str) -> str:
    """The package of a pooler, such as 'lmk-head 0.1.0'; empty for lmk's own."""
    return catalog.POOLERS[_row(name)].provider


def open_pooler(name: str) -> Pooler:
    """The pooler of a name such as 'lmk' or 'mean@4'; a pooler 'NAME@k' takes a whole number."""
    make: Callable[..., Pooler] = catalog.load(catalog.POOLERS, _row(name), "pooler")
    stem, at, step = name.partition("@")
    if not at:
        return make()
    if not is_count(step):
        raise UsageError(
            f"--pool {name}: write {stem}@k with a whole number k of at least 1, such as {stem}@8"
        )
    return make(int(step))


def check_unit(pool: str, pooler: Pooler, unit: str, window: str) -> None:
    """UsageError when pool x unit x window has no meaning."""
    if unit != "doc" and pooler.per == "model" and (unit, window) != ("chunk", "chunk"):
        raise UsageError(
            f"--unit {unit}: the model makes one vector of an input and leaves no states of its "
            "tokens; for a vector per chunk use --unit chunk --gran 256 --window chunk"
        )
    if unit == "token" and pooler.per != "token":
        raise UsageError(
            f"--unit token makes a vector of every state, and --pool {pool} picks some; use --pool mean"
        )
    if unit == "chunk" and window != "chunk" and pooler.per in ("input", "step"):
        why = (
            "makes one vector of an input"
            if pooler.per != "step"
            else "marks every k-th position, so that a chunk may have none"
        )
        raise UsageError(
            f"--pool {pool} {why}: for a vector per chunk embed each chunk alone with "
            "--window chunk, or use --pool mean, lmk or multicls"
        )


def granularity(pool: str, gran: str | None, unit: str = "doc", window: str = "full") -> str:
    """The granularity in its canonical spelling; UsageError when it is none, or has no effect."""
    chunked = open_pooler(pool).chunked
    needs = [
        text
        for text, needed in (
            (f"--pool {pool}", chunked),
            ("--unit chunk", unit == "chunk"),
            ("--window chunk", window == "chunk"),
        )
        if needed
    ]
    if gran is None:
        if needs:
            raise UsageError(
                f"{needs[0]} cuts text into chunks: say how long with --gran, for instance --gran 64"
            )
        return ""
    if not needs and not window.isdigit():
        raise UsageError(
            f"--gran {gran} has no effect with --pool {pool}, --unit {unit} and --window {window}; "
            "drop it, or use --pool lmk or --unit chunk"
        )
    if gran in SPLITTERS or is_count(gran):
        return gran if gran in SPLITTERS else str(int(gran))
    raise UsageError(
        f"--gran {gran}: write a number of tokens of at least 1, 'sentence' or 'given'"
    )
