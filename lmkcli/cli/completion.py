"""What a shell completes: names of collections, poolers, measures and models. No heavy import."""

from collections.abc import Callable

from lmkcli import catalog
from lmkcli.data import known
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


def collections(begun: str) -> list[str]:
    """Groups of known collections and their members."""
    names = [name for group in known.groups() for name in (group, *known.group(group))]
    return _beginning([*names, "stdlib/functions", "stdlib/modules"], begun)


def poolers(begun: str) -> list[str]:
    """The poolers, and what the model's folder says."""
    return _beginning(["auto", *catalog.POOLERS], begun)


def measures(begun: str) -> list[str]:
    """The measures that are asked for most, as ir-measures writes them."""
    return _beginning(_MEASURES, begun)


def models(begun: str) -> list[str]:
    """The model of the demo, and those of the hub that the cache has."""
    found = sorted(caches.hub().glob("models--*--*"))
    names = [each.name.removeprefix("models--").replace("--", "/", 1) for each in found]
    return _beginning(["minilm", *names], begun)


def _beginning(names: "list[str] | tuple[str, ...]", begun: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(begun)]


OF_FLAGS: dict[str, Complete] = {
    "--pool": poolers,
    "--model": models,
    "--measure": measures,
    "--qrels": collections,
    "--dev": collections,
}
