"""Known collections: the published facts about each, from the table in known_collections.toml.

The facts determine defaults: the measures, the lowest relevant grade, and whether a query may find its own
document. The published counts are compared with the counts on disk. Facts never change a text.
"""

import difflib
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class KnownCollection:
    """The published facts of one collection.

    The counts are None if no publication states them.
    """

    name: str
    group: str
    """Its benchmark.

    'beir/cqadupstack' is a subgroup of 'beir': its members are averaged first, and their mean counts once.
    """
    source: str
    """The row of the catalog's SOURCES that reads it."""
    measures: tuple[str, ...] = ("nDCG@10",)
    rel: int = 1
    """The lowest relevant grade of binary measures."""
    drop_self: bool = False
    """Whether a document with the id of the query is removed from its results."""
    prompts: str = "question-passage"
    """The kinds of queries and of relevant documents ('claim-passage')."""
    docs: int | None = None
    queries: int | None = None
    """The number of judged queries."""
    licence: str = ""
    citation: str = ""
    note: str = ""


def facts_of(name: str) -> KnownCollection | None:
    """Return the facts of the collection with this name; None if it is not a known collection.

    A prefix 'irds:' or 'hf:' and options ',key=value' are ignored, except ',like=NAME', which names the
    original of a copy. Alternative names of a collection ('beir/nfcorpus') work too.
    """
    head, *options = name.split(",")
    originals = [pair.removeprefix("like=") for pair in options if pair.startswith("like=")]
    plain = _without_prefix((originals or [head])[-1])
    table = _table()
    return table.get(plain) or table.get(_aliases().get(plain, ""))


def _without_prefix(name: str) -> str:
    return name.removeprefix("irds:").removeprefix("hf:")


def count_differences(name: str, docs: int | None = None, queries: int | None = None) -> list[str]:
    """Return one line for each count that differs from the published one; [] if they agree.

    Alternative names of a collection are not compared, because their queries differ.
    """
    facts = facts_of(name)
    if facts is None or facts.name != _without_prefix(name.split(",")[0]):
        return []
    counts = (("documents", facts.docs, docs), ("judged queries", facts.queries, queries))
    return [
        f"{facts.name}: {found:,} {what} found, {published:,} published; is the copy complete?"
        for what, published, found in counts
        if None not in (published, found) and published != found
    ]


def members(group: str) -> list[str]:
    """Return the names of the collections in a group ('beir', 'beir/cqadupstack'); [] for other names."""
    return [
        each.name
        for each in _table().values()
        if each.group == group or each.group.startswith(f"{group}/")
    ]


def groups() -> list[str]:
    """Return the names of all groups, and of their parts that are averaged separately."""
    parts = {each.group for each in _table().values()}
    return sorted(parts | {part.partition("/")[0] for part in parts})


def similar_names(name: str) -> list[str]:
    """Return the names and groups most similar to this name; all groups if none is similar."""
    return difflib.get_close_matches(name, [*names(), *groups()], n=3, cutoff=0.5) or groups()


def names() -> list[str]:
    """Return the names of all known collections, in the order of the table."""
    return list(_table())


@cache
def _read() -> list[dict[str, Any]]:
    text = files("lmkcli.data").joinpath("known_collections.toml").read_text("utf-8")
    return tomllib.loads(text)["family"]  # type: ignore[no-any-return]


@cache
def _table() -> dict[str, KnownCollection]:
    """Name -> facts. The facts of a family apply to its collections unless a row overrides them."""
    allowed = {field.name for field in fields(KnownCollection)}
    rows = {}
    for family in _read():
        common = {key: value for key, value in family.items() if key in allowed}
        for name, own in family["collections"].items():
            facts = common | {key: value for key, value in own.items() if key in allowed}
            facts["measures"] = tuple(facts.get("measures", KnownCollection.measures))
            rows[name] = KnownCollection(name, **facts)
    return rows


@cache
def _aliases() -> dict[str, str]:
    """Alternative name -> name."""
    return {
        alias: name
        for family in _read()
        for name, row in family["collections"].items()
        for alias in row.get("also", ())
    }
