"""ir_metadata: what is known of a run in the schema of ir-metadata.org, as YAML beside the run.

The schema's six parts are those of PRIMAD: platform, research goal, implementation, method, actor,
data. Only what was recorded is written: no actor, no publication, no resources.
"""

import gzip
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lmkcli.errors import DataError
from lmkcli.provenance.lineage import Step
from lmkcli.system.atomic import atomic_file

SCHEMA = 0.2
SUFFIX = ".ir_metadata.yml"
_TIES = "document id, descending"
_RECIPE = ("pool", "gran", "unit", "window", "max_length", "prompt", "dim", "similarity")


def write(entry: Mapping[str, Any]) -> Path:
    """Write the metadata of a log's entry beside its run, as run.trec.ir_metadata.yml; returns where.

    DataError when another one is there: it may hold what somebody added, such as the actor.
    """
    path = Path(entry["run"] + SUFFIX)
    text = "\n".join(_lines(describe_entry(entry))) + "\n"
    if path.exists():
        if path.read_text(encoding="utf-8") == text:
            return path
        raise DataError(f"{path} is there already and says something else; move it away")
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def describe_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a log's entry; parts of which nothing is known are left out."""
    led = [Step(**step) for step in entry["lineage"]]
    metadata: dict[str, Any] = {"schema version": SCHEMA, "tag": _tag(Path(entry["run"]))}
    if led:
        metadata["platform"] = _platform(led[-1].facts)
    metadata["research goal"] = {"evaluation": {"reported measures": list(entry["scores"])}}
    if led:
        metadata["implementation"] = _implementation(led)
        metadata["method"] = _method(led)
    return {**metadata, "data": {"test collection": _data(led, entry)}}


def _tag(run: Path) -> str:
    opener = gzip.open if run.suffix == ".gz" else open
    with opener(run, "rt", encoding="utf-8") as file:
        return next((line.split()[-1] for line in file if line.strip()), "")


def _platform(facts: dict[str, Any]) -> dict[str, Any]:
    machine, packages = facts["machine"], facts["packages"]
    hardware: dict[str, Any] = {
        "cpu": {"model": machine.get("cpu", ""), "number of cores": machine.get("cores", 0)}
    }
    if machine.get("gpus"):
        hardware["gpu"] = {"model": machine["gpus"]}
    libraries = [f"{name}=={version}" for name, version in packages.items()]
    return {
        "hardware": {**hardware, "ram": f"{machine.get('memory', 0) / 1e9:.0f} GB"},
        "operating system": {"kernel": machine.get("system", "")},
        "software": {
            "libraries": {"python": [f"python=={facts['python']}", *libraries]},
            "retrieval toolkit": [f"lmkcli=={facts['lmk']}"],
        },
    }


def _implementation(led: list[Step]) -> dict[str, Any]:
    """The commands of all steps as one line, sources first."""
    lines = [shlex.join(["lmk", *step.facts["command"][1:]]) for step in led]
    return {"executable": {"cmd": " && ".join(lines)}, "source": {"lang": ["python"]}}


def _method(led: list[Step]) -> dict[str, Any]:
    method: dict[str, Any] = {"automatic": True, "score ties": _TIES}
    analyses = [step.identity["analysis"] for step in led if "analysis" in step.identity]
    if analyses:
        names = {"tokenizer": "tokenizer", "stemmer": "stemmer", "stopwords": "stop_words"}
        method["indexing"] = {
            key: analyses[0][name] for key, name in names.items() if name in analyses[0]
        }
    return {**method, "retrieval": [stage for step in led for stage in _stages(step)]}


def _stages(step: Step) -> Iterator[dict[str, Any]]:
    """What a step adds to the ranking pipeline."""
    name = Path(step.path).name
    if step.kind == "vectors":
        side = step.identity["recipe"]["doc"]
        model = step.facts["models"]["doc"]["model"]
        settings = {key: side[key] for key in _RECIPE if side.get(key)}
        yield {"name": name, "method": "dense retrieval", "model": model, **settings}
    elif step.kind == "index":
        family, settings = step.identity["family"], step.identity["settings"]
        of = {"of": Path(step.facts["vectors"]).name} if "vectors" in step.facts else {}
        yield {"name": name, "method": family, **of, **settings}
    elif step.kind == "run":
        yield from _searched(step, name)


def _searched(step: Step, name: str) -> Iterator[dict[str, Any]]:
    """The fusion and the reranking of a search; none of them is a stage of its own."""
    how, call = step.identity["search"], step.operation
    first = os.path.basename(os.path.normpath(call.get("index") or step.facts["index"]))
    if "fuse" in how:
        fused = [first, *(os.path.basename(os.path.normpath(p)) for p in call.get("others", []))]
        yield {"name": f"{name} fusion", **how["fuse"], "interpolates": fused}
        first = f"{name} fusion"
    if "rerank" in how:
        by = call.get("rerank_model") or os.path.basename(os.path.normpath(call.get("rerank", "")))
        weight = how["rerank"]["interpolate"]
        stage = {"name": f"{name} reranking", "method": how["by"], "with": by, "reranks": first}
        yield stage | {"depth": how["rerank"]["depth"]} | ({"weight": weight} if weight else {})


def _data(led: list[Step], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The test collection; by its id too where ir_datasets has it."""
    name = next((step.source for step in reversed(led) if step.source), "")
    collection = {"name": name} if name else {}
    if name and not os.path.isabs(name):
        collection["ir_datasets"] = name.partition(",")[0]
    return {**collection, "qrels": entry["qrels"] or name}


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """YAML; every scalar in JSON's spelling, which YAML reads."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield f"{indent}{key}:"
            yield from _lines(item, indent + "  ")
        elif isinstance(item, list):
            yield f"{indent}{key}:"
            yield from (f"{indent}- {json.dumps(each, ensure_ascii=False)}" for each in item)
        else:
            yield f"{indent}{key}: {json.dumps(item, ensure_ascii=False)}"
