"""What a grid reads: models and collections, as far as they are here, in the form that keys need.

A local folder counts by what is in it, so that a model that was trained again makes other steps; what
the hub or ir_datasets has counts by its name, whether it was downloaded yet or not.
"""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lmkcli.errors import UsageError
from lmkcli.models.finding import is_here, read_model
from lmkcli.models.folder import ModelFolder
from lmkcli.pooling.placement import SPLITTERS


@cache
def local_model(name: str, revision: str) -> ModelFolder | None:
    """The model, if it is on this machine; DataError for a path at which there is none."""
    if not os.path.isdir(os.path.expanduser(name)):
        if name.endswith("/"):
            raise UsageError(f"there is no model folder {name}")
        if not is_here(name, revision or None):
            return None
    return read_model(name, revision or None, offline=True)


def model_material(name: str, revision: str) -> Any:
    """What stands for a model in keys: digests of a local folder, name and revision of a hub's."""
    model = local_model(name, revision) if name else None
    if model is None or model.revision:
        return [name, revision]
    return [model.weights_digest, model.tokenizer_digest, _declared(model)]


def _declared(model: ModelFolder) -> Any:
    """What the folder says of pooling, lengths and prompts, which decide vectors too."""
    prompts = (model.query_prompt, model.doc_prompt)
    lengths = (model.max_length, model.query_length)
    return [model.pool, model.gran, *lengths, *prompts, model.similarity, model.normalize]


def tokens_material(flags: Mapping[str, tuple[str, ...]]) -> Any:
    """What stands for the tokens that `lmk tokenize` makes with these flags: tokenizer, prompt, splitter.

    Models that are not here share no tokens with others.
    """
    name, revision, gran, pool = (
        " ".join(flags.get(flag, ())) for flag in ("model", "revision", "gran", "pool")
    )
    model = local_model(name, revision)
    declared = model.gran if model and pool in ("", "auto") else ""
    splitter = gran or declared or ("" if model or pool not in ("", "auto") else "auto")
    prompt = flags.get("doc_prompt") or ((model.doc_prompt,) if model else ("auto",))
    tokenizer = model.tokenizer_digest if model else [name, revision]
    kept = {
        flag: flags.get(flag) for flag in ("store_text", "trust_remote_code", "fields", "map_ids")
    }
    return [tokenizer, prompt, splitter if splitter in (*SPLITTERS, "auto") else "", kept]


@cache
def stamp(spelling: str) -> Any:
    """Names, sizes and times of the files behind a path; None for what is no path."""
    path = Path(os.path.expanduser(spelling.partition(",")[0]))
    path = path if path.exists() else Path(str(path).rpartition(":")[0])
    if not path.name or not path.exists():
        return None
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    stats = [(str(each.relative_to(path)), each.stat()) for each in files]
    return [[name, facts.st_size, facts.st_mtime_ns] for name, facts in stats]
