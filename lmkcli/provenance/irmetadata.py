"""Metadata of a run in the schema of ir-metadata.org, as a YAML file next to the run.

The six parts of the schema are those of PRIMAD: platform, research goal, implementation, method, actor,
data. Only recorded facts are written, so actor, publication and resources are missing.
"""

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lmkcli.artifact.kinds import Facts, IndexManifest, RunManifest, VectorsManifest
from lmkcli.errors import DataError
from lmkcli.provenance.lineage import LineageStep
from lmkcli.system.atomic import atomic_file
from lmkcli.text.formatting import shell_line

SCHEMA = 0.2
SUFFIX = ".ir_metadata.yml"
_TIES = "document id, descending"
_RECIPE = ("pool", "gran", "unit", "window", "max_length", "prompt", "dim", "similarity")


def write(entry: Mapping[str, Any]) -> Path:
    """Write the metadata of a log entry to run.trec.ir_metadata.yml, next to its run; return the path.

    DataError if a different file exists: it may contain additions by hand, such as the actor.
    """
    path = Path(entry["run"] + SUFFIX)
    text = "\n".join(_lines(describe_entry(entry))) + "\n"
    if path.exists():
        if path.is_file() and path.read_bytes() == text.encode("utf-8", "replace"):
            return path
        raise DataError(f"{path} exists already and is different; move it away")
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def describe_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a log entry, without the parts that are unknown."""
    steps = [LineageStep.from_json(step, entry["run"]) for step in entry["lineage"]]
    metadata: dict[str, Any] = {"schema version": SCHEMA, "tag": _tag(Path(entry["run"]))}
    if steps:
        metadata["platform"] = _platform(steps[-1].made.facts)
    metadata["research goal"] = {"evaluation": {"reported measures": list(entry["scores"])}}
    if steps:
        commands = [shell_line("lmk", *step.made.facts.command[1:]) for step in steps]
        metadata["implementation"] = {
            "executable": {"cmd": " && ".join(commands)},
            "source": {"lang": ["python"]},
        }
        metadata["method"] = _method(steps)
    name = next((step.source for step in reversed(steps) if step.source), "")
    collection = {"name": name} if name else {}
    if name and not os.path.isabs(name):
        collection["ir_datasets"] = name.partition(",")[0]
    collection["qrels"] = entry["qrels"] or name
    return {**metadata, "data": {"test collection": collection}}


def _tag(run: Path) -> str:
    opener = gzip.open if run.suffix == ".gz" else open
    with opener(run, "rt", encoding="utf-8") as file:
        return next((line.split()[-1] for line in file if line.strip()), "")


def _platform(facts: Facts) -> dict[str, Any]:
    machine = facts.machine
    hardware: dict[str, Any] = {
        "cpu": {"model": machine["cpu"], "number of cores": machine["cores"] or 0}
    }
    if machine["gpus"]:
        hardware["gpu"] = {"model": machine["gpus"]}
    libraries = [f"{name}=={version}" for name, version in facts.packages.items()]
    return {
        "hardware": {**hardware, "ram": f"{machine['memory'] / 1e9:.0f} GB"},
        "operating system": {"kernel": machine["system"]},
        "software": {
            "libraries": {"python": [f"python=={facts.python}", *libraries]},
            "retrieval toolkit": [f"lmkcli=={facts.lmk}"],
        },
    }


def _method(steps: list[LineageStep]) -> dict[str, Any]:
    method: dict[str, Any] = {"automatic": True, "score ties": _TIES}
    indexes = [step.made for step in steps if isinstance(step.made, IndexManifest)]
    analyses = [made.identity.analysis for made in indexes if made.identity.analysis]
    if analyses:
        names = {"tokenizer": "tokenizer", "stemmer": "stemmer", "stopwords": "stop_words"}
        method["indexing"] = {
            key: analyses[0][name] for key, name in names.items() if name in analyses[0]
        }
    return {**method, "retrieval": [stage for step in steps for stage in _stages(step)]}


def _stages(step: LineageStep) -> Iterator[dict[str, Any]]:
    """Yield the stages of the ranking pipeline that a step adds."""
    name, made = Path(step.path).name, step.made
    if isinstance(made, VectorsManifest):
        side = made.identity.recipe.doc.identity()
        model = made.facts.models.doc.model
        settings = {key: side[key] for key in _RECIPE if side.get(key)}
        yield {"name": name, "method": "dense retrieval", "model": model, **settings}
    elif isinstance(made, IndexManifest):
        of = {"of": Path(made.facts.vectors).name} if made.facts.vectors else {}
        yield {"name": name, "method": made.identity.family, **of, **made.identity.settings}
    elif isinstance(made, RunManifest):
        yield from _searched(made, name)


def _searched(made: RunManifest, name: str) -> Iterator[dict[str, Any]]:
    """Yield the fusion and the reranking of a search, if any."""
    how, call = made.identity.search, made.facts.operation
    first = os.path.basename(os.path.normpath(call.get("index") or made.facts.index))
    if "fuse" in how:
        fused = [first, *(os.path.basename(os.path.normpath(p)) for p in call.get("others", []))]
        yield {"name": f"{name} fusion", **how["fuse"], "interpolates": fused}
        first = f"{name} fusion"
    if "rerank" in how:
        by = call.get("rerank_model") or os.path.basename(os.path.normpath(call.get("rerank", "")))
        weight = how["rerank"]["interpolate"]
        stage = {
            "name": f"{name} reranking",
            "method": how.get("by", ""),
            "with": by,
            "reranks": first,
        }
        yield stage | {"depth": how["rerank"]["depth"]} | ({"weight": weight} if weight else {})


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of YAML; scalars are in the spelling of JSON, which is valid YAML."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield f"{indent}{key}:"
            yield from _lines(item, indent + "  ")
        elif isinstance(item, list):
            yield f"{indent}{key}:"
            yield from (f"{indent}- {json.dumps(each, ensure_ascii=False)}" for each in item)
        else:
            yield f"{indent}{key}: {json.dumps(item, ensure_ascii=False)}"
