"""Sources of examples: parse an argument of the command line into a path and options."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli.data.collection import FILE_SUFFIXES, divided, open_collection, spell
from lmkcli.errors import UnknownName, UsageError
from lmkcli.spec.values import Window, is_count
from lmkcli.training.data.examples import Example, Examples, Ints, Tally, cleaned
from lmkcli.training.data.formats import as_examples, read_examples
from lmkcli.training.data.mining import Mining, mined
from lmkcli.training.data.sampling import Drawing
from lmkcli.training.training_record import SourceRecord


@dataclass(frozen=True)
class Source:
    """A source of examples with its options."""

    name: str  # a file of examples, '-' for stdin, or a collection with its options
    weight: float = 1.0  # sampling weight of its examples, relative to their number
    query_prompt: str | None = None
    doc_prompt: str | None = None
    query_max_length: int | None = None  # positions of a query
    max_length: int | None = None  # positions of a passage
    window: Window | None = None  # a number of positions; a passage is read in as many as it needs
    blocks: bool | None = None  # pre-training: whether its texts are joined; None: as --blocks says
    mining: Mining = field(default_factory=Mining)
    drawing: Drawing = field(default_factory=Drawing)

    @property
    def is_file(self) -> bool:
        """Whether the source is a file of examples, not a collection."""
        path = Path(os.path.expanduser(self.name))
        has_suffix = "," not in self.name and path.suffix in FILE_SUFFIXES and not path.is_dir()
        return self.name == "-" or has_suffix or path.is_file()


class _Option(NamedTuple):
    owner: type
    field: str
    read: Callable[[str], object]


def _boolean(value: str) -> bool:
    return {"0": False, "1": True}[value]


def _positive(value: str) -> str:
    return {"first": "first", "random": "random", "best": "best"}[value]


def _window(value: str) -> Window:
    if not is_count(value.removeprefix("even:")):
        raise ValueError(value)
    return Window(value)


OPTIONS = {
    "weight": _Option(Source, "weight", float),
    "query_prompt": _Option(Source, "query_prompt", str),
    "doc_prompt": _Option(Source, "doc_prompt", str),
    "query_max_length": _Option(Source, "query_max_length", int),
    "max_length": _Option(Source, "max_length", int),
    "window": _Option(Source, "window", _window),
    "blocks": _Option(Source, "blocks", _boolean),
    "negatives": _Option(Mining, "negatives", str),
    "depth": _Option(Mining, "depth", str),
    "relative_margin": _Option(Mining, "relative_margin", float),
    "absolute_margin": _Option(Mining, "absolute_margin", float),
    "max_score": _Option(Mining, "max_score", float),
    "judge": _Option(Mining, "judge", str),
    "teacher": _Option(Mining, "teacher", str),
    "per_query": _Option(Drawing, "negatives", int),
    "replace": _Option(Drawing, "replace", _boolean),
    "positive": _Option(Drawing, "positive", _positive),
}


def parse_source(spelling: str) -> Source:
    """Parse a source such as 'beir/scifact:train,weight=0.3,negatives=run.trec,per-query=7'.

    Options in OPTIONS (with '-' or '_') belong to training, others to the collection. Raises UsageError for
    invalid values.
    """
    head, *pairs = divided(spelling)
    options: dict[type, dict[str, Any]] = {Source: {}, Mining: {}, Drawing: {}}
    collection_options = {}
    for pair in pairs:
        key, value = _pair(pair, spelling)
        option = OPTIONS.get(key.replace("-", "_"))
        if option is None:
            collection_options[key] = value
        else:
            options[option.owner][option.field] = _read_value(option, value, pair)
    return _checked(
        Source(
            spell(_slashed(head), collection_options),
            mining=Mining(**options[Mining]),
            drawing=Drawing(**options[Drawing]),
            **options[Source],
        )
    )


def _pair(pair: str, spelling: str) -> tuple[str, str]:
    key, _, value = pair.partition("=")
    if not key or not value:
        raise UsageError(
            f"'{spelling}': '{pair}' is not an option; write options as name,key=value"
        )
    name = key.replace("-", "_")
    if name not in OPTIONS and get_close_matches(name, OPTIONS, cutoff=0.8):
        raise UnknownName("option of a source", key, OPTIONS)
    return key, value


def _read_value(option: _Option, value: str, pair: str) -> object:
    try:
        parsed = option.read(value)
        if parsed != parsed:
            raise ValueError("nan")
        return parsed
    except (KeyError, ValueError):
        forms = {
            _boolean: "0 or 1", _positive: "random, first or best", int: "a whole number",
            _window: "a number of positions, such as 512 or even:512",
        }  # fmt: skip
        expected = forms.get(option.read, "a number")
        raise UsageError(f"{pair}: '{value}' is not {expected}") from None


def _slashed(head: str) -> str:
    """Turn 'beir/scifact:train' into 'beir/scifact/train', unless a file or folder has the name."""
    name, colon, split = head.rpartition(":")
    forced = head.startswith((".", "/", "~", "irds:", "hf:"))
    if not colon or "/" not in name or forced or os.path.exists(name) or os.path.exists(head):
        return head
    return f"{name}/{split}"


def _checked(source: Source) -> Source:
    if source.is_file and (source.mining.negatives or source.mining.teacher):
        raise UsageError(
            f"'{source.name}': a file of examples contains its own negatives and scores, and accepts no "
            "run; to use a run, give a collection: a folder with corpus.jsonl, queries.jsonl and "
            "qrels/train.tsv"
        )
    if source.drawing.negatives < 0 or not 0 <= source.weight < math.inf:
        raise UsageError(f"'{source.name}': weight and per-query must be finite and at least 0")
    if source.drawing.positive == "best" and source.drawing.replace:
        raise UsageError(f"'{source.name}': replace has no effect with positive=best; drop it")
    lengths = (source.max_length, source.query_max_length)
    if any(length is not None and length < 1 for length in lengths):
        raise UsageError(f"'{source.name}': a length must be at least 1")
    if source.window and source.max_length:
        raise UsageError(
            f"'{source.name}': window reads the whole passage; drop max-length={source.max_length}"
        )
    return source


def describe_sources(sources: Sequence[Source], numbers: Ints) -> list[SourceRecord]:
    """Return name, number of examples and weight of each source. `numbers` [n] is the source of each."""
    return [
        {"name": source.name, "examples": int((numbers == i).sum()), "weight": source.weight}
        for i, source in enumerate(sources)
    ]


def read_sources(sources: Sequence[Source]) -> tuple[Examples, list[Tally]]:
    """Read the examples of all sources, and the counts of each source.

    A passage that answers a query in one example is dropped from the negatives of this query in all others.
    """
    tallies = [Tally() for _ in sources]
    pairs = zip(sources, tallies, strict=True)
    every = Examples.gather(cleaned(_read(source, tally), tally) for source, tally in pairs)
    examples, dropped = every.without_answers()
    for number, tally in enumerate(tallies):
        tally.positives_among_negatives += int((dropped == number).sum())
    return examples, tallies


def _read(source: Source, tally: Tally) -> Iterator[Example]:
    if source.is_file:
        return read_examples(source.name)
    collection = open_collection(source.name)
    records = collection.records()
    return mined(collection, source.mining, tally) if records is None else as_examples(records)
