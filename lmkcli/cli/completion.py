"""What a shell completes: names of collections, models, measures and all that is chosen by name.

Nothing heavy is imported for it. Where no name begins so, shells complete paths.
"""

from collections.abc import Callable, Iterable
from typing import get_args

from lmkcli import catalog
from lmkcli.data import known
from lmkcli.spec.operation import Option
from lmkcli.system import caches

Complete = Callable[[str], list[str]]
_MEASURES = (
    "nDCG@10",
    "nDCG@20",
    "R@100",
    "R@1000",
    "RR@10",
    "AP",
    "P@10",
    "Success@10",
    "Judged@10",
)


def among(names: Iterable[str]) -> Complete:
    """What completes a word to one of these names."""

    def complete(begun: str) -> list[str]:  # typer goes by the annotation
        return [name for name in dict.fromkeys(names) if name.startswith(begun)]

    return complete


def collections(begun: str) -> list[str]:
    """Groups of known collections and their members."""
    names = [name for group in known.groups() for name in (group, *known.group(group))]
    return among([*names, "stdlib/functions", "stdlib/modules"])(begun)


def models(begun: str) -> list[str]:
    """The model of the demo, and those of the hub that the cache has."""
    found = sorted(caches.hub().glob("models--*--*"))
    names = [each.name.removeprefix("models--").replace("--", "/", 1) for each in found]
    return among(["lmk-minilm", "minilm", *names])(begun)


measures = among(_MEASURES)  # the most frequent ones, as ir-measures writes them
_CATALOGS = ("sources", "source", "poolers", "models", "indexes", "objectives", "pretexts")
_OF_FIELDS: dict[str, Complete] = {
    "pool": among(["auto", *catalog.POOLERS]),
    "pools": among(["auto", *catalog.POOLERS]),
    "kind": among([kind for kind in catalog.INDEXES if kind != "exact"]),
    "loss": among(catalog.OBJECTIVES),
    "objective": among(catalog.PRETEXTS),
    "measure": measures,
    "dev_measure": measures,
}


def _anything(begun: str) -> list[str]:
    """Lists of names, and collections."""
    return among(_CATALOGS)(begun) + collections(begun)


def of(option: Option) -> Complete | None:
    """What completes the value of a field; None leaves it to the shell."""
    roles: dict[str, Complete] = {"collection": collections, "model": models}
    if option.name in ("what", "name") and option.flag.argument:
        return _anything if not get_args(option.kind) or option.name == "name" else None
    return _OF_FIELDS.get(option.name) or roles.get(option.flag.role)
