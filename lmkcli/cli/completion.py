"""Shell completion: names of collections, models, measures, and all other values that have names.

It imports nothing heavy. If no name fits, the shell completes paths.
"""

from collections.abc import Callable, Iterable
from typing import get_args

from lmkcli import catalog
from lmkcli.data import known_collections
from lmkcli.spec.option import Option
from lmkcli.system import caches

Completer = Callable[[str], list[str]]  # the typed start of a word -> the names that start with it
MEASURES = (  # the most frequent ones, in the notation of ir-measures
    *("nDCG@10", "nDCG@20", "R@100", "R@1000", "RR@10"),
    *("AP", "P@10", "Success@10", "Judged@10"),
)
_CATALOGS = (
    "sources",
    "source",
    "poolers",
    "models",
    "engines",
    "readers",
    "formats",
    "losses",
    "pretexts",
    "caches",
)


def among(names: Iterable[str]) -> Completer:
    """Return a completer for a fixed set of names."""

    def complete(prefix: str) -> list[str]:  # typer passes the word because of the annotation
        return [name for name in dict.fromkeys(names) if name.startswith(prefix)]

    return complete


def collections(prefix: str) -> list[str]:
    """Complete known groups of collections, their members, and the examples of sources."""
    names = [
        name
        for group in known_collections.groups()
        for name in (group, *known_collections.members(group))
    ]
    names += [name for row in catalog.SOURCES.values() for name in row.examples]
    return among(names)(prefix)


def models(prefix: str) -> list[str]:
    """Complete the models of the demo, and those in the cache of the Hugging Face hub."""
    folders = sorted(caches.hub_cache().glob("models--*--*"))
    names = [each.name.removeprefix("models--").replace("--", "/", 1) for each in folders]
    return among(["mean-minilm", "lmk-minilm", "minilm", *names])(prefix)


def _catalogs_and_collections(prefix: str) -> list[str]:
    return among(_CATALOGS)(prefix) + collections(prefix)


_BY_FIELD: dict[str, Completer] = {
    "pool": among(["auto", *catalog.POOLERS]),
    "pools": among(["auto", *catalog.POOLERS]),
    "kind": among([kind for kind in catalog.ENGINES if kind != "exact"]),
    "loss": among(catalog.LOSSES),
    "objective": among(catalog.PRETEXTS),
    "measure": among(MEASURES),
    "store_dtype": among(catalog.CODECS),
    "dev_measure": among(MEASURES),
}
_BY_ROLE: dict[str, Completer] = {"collection": collections, "model": models}


def completer(option: Option) -> Completer | None:
    """Return the completer for the values of a field; None leaves completion to the shell."""
    if option.name in ("what", "name") and option.flag.argument:  # of lmk show and lmk analyze
        fixed = get_args(option.kind) and option.name != "name"
        return None if fixed else _catalogs_and_collections
    return _BY_FIELD.get(option.name) or _BY_ROLE.get(option.flag.role)
