"""Tiny twins of grid files: the same axes and tables, with tiny collections, models and texts.

Names do not change; folders with these names are created in the working directory of the twin. The twin
keeps collections that the file treats differently: the first, and one for each condition on collections.
Lengths, granularities and training sizes are reduced, and the dtype is fp32.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from lmkcli.data import known_collections
from lmkcli.plugins.m2bert import ROWS as M2BERT
from lmkcli.plugins.m2bert.config import M2BertConfig
from lmkcli.plugins.m2bert.model import M2BertModel
from tests import tiny

ROOT = Path(__file__).resolve().parents[3]

# Reduced settings: the divisor of a number, and its minimum.
_SHRUNK = {
    **dict.fromkeys(("max-length", "window"), (256, 16)),
    "query-max-length": (256, 8),  # the cap of queries in training differs from that of documents
    "gran": (16, 2),
    "batch-size": (512, 4),
    "steps": (2500, 2),
    "save-every": (250, 2),
    "warmup": (1000, 0),
    "epochs": (2, 1),
}
_KINDS = (
    "mistral",
    "distilbert",
    "splade",
)  # of tiny models with this word in their name; others are ModernBERT
_DOCS, _CHUNKS = 20, 6  # such a document is longer than 8,192 // 256 positions
_TEXTS = 40  # of a pre-training: more than one batch

Table = dict[str, Any]


def twin(file: Path, folder: Path) -> Path:
    """Write the twin of a grid file and its inputs to a folder, which is its working directory."""
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    blocks = list(_blocks(tables["grid"]))
    collections = chosen(tables["grid"])
    blocks[0]["collections"] = collections
    chunked = any("given" in _listed(block.get("gran", "")) for block in blocks)
    for name in collections:
        _collection(folder / name, chunked and not name.startswith("nano-beir"))
    for key, value in ((key, value) for block in blocks for key, value in block.items()):
        for name in filter(None, _listed(value)):
            _material(folder, key, name)
    written = ["[grid]", *_lines(_shrunk(blocks[0]))]
    written += [
        line for block in blocks[1:] for line in ("[[grid.where]]", *_lines(_shrunk(block)))
    ]
    table = tables.get("table", {})
    if means := table.pop("means", {}):  # of collections that the twin has
        kept = {each.partition("/")[0] for each in collections}
        table["means"] = {name: has for name, has in means.items() if kept & {*has}}
    written += ["[table]", *_lines(table)]
    (folder / file.name).write_text("\n".join(written) + "\n", encoding="utf-8")
    return folder / file.name


def chosen(grid: Table) -> list[str]:
    """The collections of a twin."""
    members = [
        name for each in grid["collections"] for name in known_collections.members(each) or [each]
    ]
    patterns = [block["collection"] for block in grid.get("where", []) if "collection" in block]
    wanted = members[:1]
    for pattern in reversed(patterns):  # later patterns are narrower
        if not any(fnmatchcase(name, pattern) for name in wanted):
            wanted.append(next(name for name in members if fnmatchcase(name, pattern)))
    return wanted


def _blocks(grid: Table) -> Iterator[Table]:
    plain = {key: value for key, value in grid.items() if key != "where"}
    yield from map(_flat, [plain, *grid.get("where", [])])


def _flat(table: Table, before: str = "") -> Table:
    flat: Table = {}
    for key, value in table.items():
        flat |= (
            _flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
        )
    return flat


def _listed(value: Any) -> list[Any]:
    """The single values of an axis with one value, several values, or lists of values."""
    items = value if isinstance(value, list) else [value]
    return [
        single for item in items for single in (_listed(item) if isinstance(item, list) else [item])
    ]


def _shrunk(block: Table) -> Table:
    return {key: _smaller(key.rpartition(".")[2], value) for key, value in block.items()}


def _smaller(key: str, value: Any) -> Any:
    if isinstance(value, list):
        smaller = [_smaller(key, each) for each in value]
        for n in range(1, len(smaller)):  # lengths that differ stay different
            if isinstance(value[n], int) and isinstance(value[n - 1], int) and key in _SHRUNK:
                smaller[n] = max(smaller[n], smaller[n - 1] + 1)
        return smaller
    if key == "dtype":
        return "fp32"
    if key not in _SHRUNK:
        return value
    divisor, least = _SHRUNK[key]
    if isinstance(value, int | float):
        return min(value, max(least, int(value) // divisor))
    return re.sub(r"\d+", lambda number: str(max(least, int(number[0]) // divisor)), value)


def _lines(table: Table) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            pairs = ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in value.items())
            yield f"{key} = {{ {pairs} }}"
        else:
            yield f"{key} = {json.dumps(value)}".replace("Infinity", "inf")


def _material(folder: Path, key: str, name: Any) -> None:
    """Create the model, texts or examples that a value of an axis names, if they do not exist."""
    place = folder / str(name).partition(",")[0].removesuffix("*")
    if place.exists() or "*" in str(name):
        return
    if key == "pretrain.architecture":
        architecture = json.loads((ROOT / name).read_text(encoding="utf-8"))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(narrow(architecture)), encoding="utf-8")
    elif key == "pretrain.tokenizer":
        tiny.wordpiece(markers="tite" not in place.name).save_pretrained(place)
    elif key in ("model", "train.teacher"):
        _model(place, str(name))
    elif key == "pretrain.collections" and str(name).partition(",")[0].endswith("/"):
        tiny.collection(place, docs=_TEXTS, queries=1)
    elif key == "pretrain.collections":
        texts = [{"_id": str(n), "text": tiny.sentence(n, 30)} for n in range(_TEXTS)]
        tiny.write_jsonl(place, texts)
    elif key == "train.examples" and place.suffix == ".jsonl":
        _examples(place)
    elif key == "train.examples" and place.name.endswith(":train"):
        judged = tiny.collection(place.with_name(place.name.removesuffix(":train"))) / "qrels"
        (judged / "test.tsv").rename(judged / "train.tsv")
    elif key == "train.examples":
        _collection(place, chunked=True)


def _model(place: Path, name: str) -> None:
    """A tiny model of the kind that the name of the model tells."""
    words = place.name.lower()
    kind = next((kind for kind in _KINDS if kind in words), "modernbert")
    seed = crc32(name.encode())  # equal models would share their steps
    if name.startswith("./m2-bert"):
        _m2bert(place, seed)
        tiny.wordpiece().save_pretrained(place)
    elif name.startswith("hazyresearch/"):  # the released folders have no tokenizer
        _m2bert(place, seed)
        tiny.wordpiece().save_pretrained(place.parents[1] / M2BERT[0].tokenizer)
    elif kind == "splade":
        tiny.save_masked(place, "bert")
    else:
        tiny.save(place, kind, seed)


def narrow(architecture: Table) -> Table:
    """The same layers with a sixteenth of the widths and positions, and the vocabulary of the tests."""
    sizes = (
        *("hidden_size", "hidden_sizes", "intermediate_size", "intermediate_sizes"),
        *("max_position_embeddings", "long_conv_l_max"),  # M2-BERT pads each text to this length
    )
    narrow = {key: _divided(architecture[key]) for key in sizes if key in architecture}
    return {**architecture, **narrow, "vocab_size": tiny.VOCABULARY}


def _divided(value: Any) -> Any:
    return [each // 16 for each in value] if isinstance(value, list) else value // 16


def _m2bert(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    config = M2BertConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=tiny.WIDTH, intermediate_size=64, num_hidden_layers=2,
        max_position_embeddings=128, hyena_filter_order=16,
    )  # fmt: skip
    M2BertModel(config).save_pretrained(folder)


def _examples(path: Path) -> None:
    """Queries with a positive, eight negatives, and the scores of a teacher."""
    lines = [
        json.dumps(
            {
                "query": tiny.sentence(n, 6),
                "pos": [tiny.sentence(n, 20)],
                "neg": [tiny.sentence(n + 3 * other, 20) for other in range(1, 9)],
                "pos_scores": [9.0],
                "neg_scores": [float(8 - other) for other in range(8)],
            }
        )
        for n in range(16)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


def _collection(folder: Path, chunked: bool) -> None:
    """A tiny BEIR folder; if documents have chunks, the chunks are judged."""
    if not chunked:
        tiny.collection(folder, docs=_DOCS, queries=4)
        return
    (folder / "qrels").mkdir(parents=True)
    docs = [
        {"_id": f"d{n}", "chunks": [tiny.sentence(n + 9 * c, 8) for c in range(_CHUNKS)]}
        for n in range(_DOCS)
    ]
    queries = [{"_id": f"q{n}", "text": tiny.sentence(n, 5)} for n in range(4)]
    rows = [f"q{n}\td{n}#{n % _CHUNKS}\t1" for n in range(4)]
    tiny.write_jsonl(folder / "corpus.jsonl", docs)
    tiny.write_jsonl(folder / "queries.jsonl", queries)
    text = "query-id\tcorpus-id\tscore\n" + "\n".join(rows) + "\n"
    (folder / "qrels" / "test.tsv").write_text(text, encoding="utf-8")
