"""Ways to damage a file, drawn at random. Used by test_fuzz.py.

Each takes a file and a generator, changes the file, and says in a few words what it did; an empty
answer means that there was nothing of the kind to damage.
"""

import copy
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Damage = Callable[[Path, Random], str]
WRONG = (
    None, True, 0, -1, 1, 1.5, 10**30, float("nan"), float("inf"), "", "x", "../..", "\0", "\udcff", [], {},
    [None], [[]], {"a": 1}, "9" * 5000,
)  # fmt: skip
LINES = {".jsonl", ".tsv", ".trec", ".txt", ".gz"}


def emptied(path: Path, random: Random) -> str:
    path.write_bytes(b"")
    return "emptied"


def missing(path: Path, random: Random) -> str:
    path.unlink()
    return "removed"


def cut(path: Path, random: Random) -> str:
    whole = path.read_bytes()
    at = random.randrange(len(whole))
    path.write_bytes(whole[:at])
    return f"cut at {at} of {len(whole)}"


def flipped(path: Path, random: Random) -> str:
    data = bytearray(path.read_bytes())
    places = [random.randrange(len(data)) for _ in range(random.choice((1, 3, 20)))]
    for place in places:
        data[place] = random.randrange(256)
    path.write_bytes(data)
    return f"bytes changed at {places}"


def zeroed(path: Path, random: Random) -> str:
    data = bytearray(path.read_bytes())
    first = random.randrange(len(data))
    stop = min(len(data), first + random.choice((8, 64, 4096)))
    data[first:stop] = bytes(stop - first)
    path.write_bytes(data)
    return f"zeros from {first} to {stop}"


def filled(path: Path, random: Random) -> str:
    data = path.read_bytes()
    at = random.randrange(len(data))
    path.write_bytes(data[:at] + random.randbytes(random.choice((1, 9, 300))) + data[at:])
    return f"bytes put in at {at}"


def made_a_folder(path: Path, random: Random) -> str:
    path.unlink()
    path.mkdir()
    return "made a folder"


def looped(path: Path, random: Random) -> str:
    path.unlink()
    path.symlink_to(path.name)
    return "made a link to itself"


def another(path: Path, random: Random) -> str:
    """The file of another part or kind that lies about."""
    others = [each for each in path.parent.parent.rglob("*") if each.is_file() and each != path]
    if not others:
        return ""
    chosen = random.choice(sorted(others))
    shutil.copyfile(chosen, path)
    return f"made a copy of {chosen.name}"


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each value within a JSON value."""
    pairs: Any = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(place for key, inner in pairs for place in _places(inner, (*at, key)))]


def retyped(path: Path, random: Random) -> str:
    """A JSON file, or a line of one, in which a value is another, is gone, or is too deep."""
    try:
        lines = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
        number = random.randrange(len(lines))
        value = json.loads(lines[number])
    except ValueError:
        return ""
    places = _places(value)[1:]
    if not places:
        return ""
    *above, last = random.choice(places)
    within = value
    for key in above:
        within = within[key]
    what = random.choice(("wrong", "wrong", "wrong", "gone", "deep", "twice"))
    wrong = copy.deepcopy(random.choice(WRONG))
    mark = "here it is"
    within[last] = mark if what == "deep" else wrong
    if what == "gone":
        del within[last]
    text = json.dumps(value)
    if what == "deep":
        text = text.replace(json.dumps(mark), "[" * 5000 + "]" * 5000)
    if what == "twice" and isinstance(within, dict):
        text = text.replace(
            f"{json.dumps(last)}: ", f"{json.dumps(last)}: 1, {json.dumps(last)}: ", 1
        )
    lines[number] = text
    path.write_text("\n".join(lines) + "\n", "utf-8", "surrogatepass")
    return f"{'.'.join(map(str, (*above, last)))} {what} {str(wrong)[:20]!r} (line {number + 1})"


def reshaped(path: Path, random: Random) -> str:
    if path.suffix != ".npy":
        return ""
    array = np.load(path)
    ways: dict[str, Callable[[], Any]] = {
        "fewer rows": lambda: array[: len(array) // 2],
        "more rows": lambda: np.concatenate([array, array]),
        "flat": lambda: array.ravel(),
        "an axis more": lambda: array[None],
        "float64": lambda: array.astype(np.float64),
        "int8": lambda: array.astype(np.int8),
        "big-endian": lambda: array.astype(array.dtype.newbyteorder(">")),
        "objects": lambda: array.astype(object),
        "text": lambda: array.astype(str),
        "a number": lambda: array.ravel()[0] if array.size else array.dtype.type(),
        "Fortran order": lambda: np.asfortranarray(array),
        "-1": lambda: np.full_like(array, -1),
        "not finite": lambda: _spoilt(array, random),
        "backwards": lambda: array[::-1],
    }
    name = random.choice(sorted(ways))
    np.save(path, ways[name](), allow_pickle=True)
    return f"the array made {name}"


def _spoilt(array: Any, random: Random) -> Any:
    made = array.copy()
    if made.dtype.kind == "f" and made.size:
        made.flat[random.randrange(made.size)] = random.choice((np.nan, np.inf))
    return made


def retabled(path: Path, random: Random) -> str:
    if path.suffix != ".parquet":
        return ""
    before, table = path.read_bytes(), pq.read_table(path)
    name = random.choice(table.column_names)
    at = table.column_names.index(name)
    ways: dict[str, Callable[[], pa.Table]] = {
        "without": lambda: table.drop_columns([name]),
        "null": lambda: table.set_column(at, name, pa.nulls(len(table), table.column(at).type)),
        "numbers": lambda: table.set_column(at, name, pa.array(range(len(table)))),
        "lists": lambda: table.set_column(at, name, pa.array([["x"]] * len(table))),
        "times": lambda: table.set_column(
            at, name, pa.array([1 << 62] * len(table), pa.timestamp("s"))
        ),
        "bytes": lambda: table.set_column(at, name, pa.array([b"\xff"] * len(table))),
        "another name": lambda: table.rename_columns(
            ["other" if each == name else each for each in table.column_names]
        ),
        "fewer rows": lambda: table[: len(table) // 2],
        "twice": lambda: pa.concat_tables([table, table]),
        "column twice": lambda: table.append_column(name, table.column(at)),
        "backwards": lambda: table.take(list(range(len(table)))[::-1]),
    }
    how = random.choice(sorted(ways))
    try:
        pq.write_table(ways[how](), path)
    except pa.ArrowInvalid:  # a time that this build of pyarrow does not write
        path.write_bytes(before)
        return ""
    return f"column {name}: {how}"


def reworded(path: Path, random: Random) -> str:
    """A file of lines with a line that is doubled, cut, joined, or has another field."""
    if path.suffix not in LINES:
        return ""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = raw.splitlines()
    number = random.randrange(len(lines))
    fields = lines[number].split(b"\t") if b"\t" in lines[number] else lines[number].split()
    place = random.randrange(len(fields))
    words = (
        b"", b"nan", b"inf", b"1e999", b"-1", b"1_0", "\u0663".encode(), b"9" * 5000, b"a b", b"\x00",
        b"\xff", b"\x1b[2J", b'"', "\ufeff".encode(), b"\r", b"x" * 70_000,
    )  # fmt: skip
    word = random.choice(words)
    how = random.choice(("field", "field", "doubled", "cut", "dropped", "added", "bom"))
    made = {
        "field": [b"\t".join([*fields[:place], word, *fields[place + 1 :]])],
        "doubled": [lines[number]] * 2,
        "cut": [lines[number][: len(lines[number]) // 2]],
        "dropped": [b"\t".join(fields[:place] + fields[place + 1 :])],
        "added": [b"\t".join([*fields[:place], word, *fields[place:]])],
        "bom": [b"\xef\xbb\xbf" + lines[number]],
    }[how]
    whole = b"\n".join(lines[:number] + made + lines[number + 1 :]) + b"\n"
    path.write_bytes(gzip.compress(whole, mtime=0) if path.suffix == ".gz" else whole)
    return f"line {number + 1}, {how} {word[:20]!r} at {place}"


ANY: tuple[Damage, ...] = (
    emptied, missing, cut, cut, flipped, flipped, zeroed, filled, made_a_folder, looped, another,
)  # fmt: skip
OWN: tuple[Damage, ...] = (retyped, reshaped, retabled, reworded)


def damage(path: Path, random: Random) -> str:
    """Do one of these to a file, half of the times one that knows its format; what was done."""
    fitting = [each for each in OWN if _fits(each, path)]
    while True:
        chosen = random.choice(fitting if fitting and random.random() < 0.6 else ANY)
        if said := chosen(path, random):
            return said


def _fits(each: Damage, path: Path) -> bool:
    return {
        retyped: path.suffix in (".json", ".jsonl"),
        reshaped: path.suffix == ".npy",
        retabled: path.suffix == ".parquet",
        reworded: path.suffix in LINES,
    }[each]
