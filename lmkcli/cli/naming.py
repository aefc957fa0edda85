"""Bare words that are both a known name and a folder here: the name counts, and a note says so."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_COLLECTIONS = ("source", "sources", "queries", "names", "qrels", "dev")  # parameters of commands
_MODELS = ("model", "rerank_model", "tokenizer", "init_from", "teacher")


def both(params: Mapping[str, Any]) -> Iterator[str]:
    """A line for each parameter that names something known, where a folder has that name too."""
    for word in filter(_is_folder, _words(params, _COLLECTIONS)):
        if _is_collection(word):
            yield _line(word, "collection")
    for word in filter(_is_folder, _words(params, _MODELS)):
        from lmkcli.models.finding import OWN_NAMES

        if word in OWN_NAMES:
            yield _line(word, "model")


def _words(params: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    """The names in these parameters, without splits and options."""
    for given in filter(None, map(params.get, names)):
        words = given if isinstance(given, list) else [given]
        yield from (each.split(",")[0].split(":")[0] for each in words if isinstance(each, str))


def _is_folder(word: str) -> bool:
    """Whether a word without a slash is a folder's name."""
    return word not in (".", "..") and "/" not in word and Path(word).is_dir()


def _is_collection(word: str) -> bool:
    """Whether it names a known collection; an artifact of that name is known by what is in it."""
    from lmkcli import manifest  # here, since every command begins with the question above
    from lmkcli.data.collection import is_known

    return not (Path(word) / manifest.NAME).is_file() and is_known(word)


def _line(word: str, what: str) -> str:
    return f"{word} is the known {what}, not the folder of that name; the folder is ./{word}"
