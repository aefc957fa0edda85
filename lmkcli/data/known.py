"""Known collections: what their makers say about each, from the table in known.toml.

A fact here decides defaults (which measure, which grade is relevant, whether a text may find itself)
and is compared with what is found on disk; it never changes a text.
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

    `group` is the benchmark that it belongs to; 'beir/cqadupstack' is a part of 'beir' whose members
    are averaged first. `source` is the row of the catalog that reads it. Binary measures take a grade
    of at least `rel` for relevant. With `drop_self`, a document with the id of the query is no result.
    `prompts` says what a query is and what answers it ('claim-passage'). `docs` and `queries` (judged
    ones) are None where nobody states them.
    """

    name: str
    group: str
    source: str
    measures: tuple[str, ...] = ("nDCG@10",)
    rel: int = 1
    drop_self: bool = False
    prompts: str = "question-passage"
    docs: int | None = None
    queries: int | None = None
    licence: str = ""
    citation: str = ""
    note: str = ""


def facts_of(name: str) -> KnownCollection | None:
    """The facts of the collection of this name, however it is spelled; None when there are none.

    'irds:' and 'hf:' before it and ',key=value' after it are no part of a name, except ',like=NAME',
    which says what a folder is a copy of. Another name of the same collection ('beir/nfcorpus') finds
    it too.
    """
    head, *options = name.split(",")
    copied = [pair.removeprefix("like=") for pair in options if pair.startswith("like=")]
    plain = (copied or [head])[-1].removeprefix("irds:").removeprefix("hf:")
    table = _table()
    return table.get(plain) or table.get(_aliases().get(plain, ""))


def count_differences(name: str, docs: int | None = None, queries: int | None = None) -> list[str]:
    """How counts that were found differ from the published ones, a line each; [] when they agree.

    Nothing is said of a collection under another of its names, whose queries are others.
    """
    facts = facts_of(name)
    if facts is None or facts.name != name.split(",")[0].removeprefix("irds:").removeprefix("hf:"):
        return []
    counts = (("documents", facts.docs, docs), ("judged queries", facts.queries, queries))
    return [
        f"{facts.name}: {here:,} {what} found, {published:,} published; is the copy complete?"
        for what, published, here in counts
        if None not in (published, here) and published != here
    ]


def group(name: str) -> list[str]:
    """The names of the collections in a group ('beir', 'beir/cqadupstack'); [] when it is none."""
    return [
        each.name
        for each in _table().values()
        if each.group == name or each.group.startswith(f"{name}/")
    ]


def groups() -> list[str]:
    """Every group, and every part of one that is averaged by itself."""
    named = {each.group for each in _table().values()}
    return sorted(named | {name.partition("/")[0] for name in named})


def near(name: str) -> list[str]:
    """The names and groups that are spelled most like this one; every group when none is."""
    return difflib.get_close_matches(name, [*names(), *groups()], n=3, cutoff=0.5) or groups()


def names() -> list[str]:
    """Every known name, in the order of the table."""
    return list(_table())


@cache
def _read() -> list[dict[str, Any]]:
    text = files("lmkcli.data").joinpath("known.toml").read_text("utf-8")
    return tomllib.loads(text)["family"]  # type: ignore[no-any-return]


@cache
def _table() -> dict[str, KnownCollection]:
    """Each family's facts hold for its collections, unless a row says otherwise."""
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
    return {
        alias: name
        for family in _read()
        for name, row in family["collections"].items()
        for alias in row.get("also", ())
    }
