"""Model cards for the Hugging Face hub, from training.json and the score log.

A card is Markdown with metadata in YAML: base model, training data, losses, steps, pooler, granularity and
scores. The model index of the metadata contains the same scores. A card names no folder of this machine.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import EvalResult, ModelCardData

from lmkcli.encoding.resolution import ResolvedRecipe
from lmkcli.encoding.sentence_folder import ExportedModel
from lmkcli.models.lookup import MINILM, OWN_NAMES
from lmkcli.provenance import scorelog
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.spec.values import Window
from lmkcli.training.training_record import TrainingRecord, read_training_record

_TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "lmk"]
_MINILM = "sentence-transformers/all-MiniLM-L6-v2"
_SHOWN = ("pool", "gran", "unit", "window")  # settings of the vectors of a score

_DEFAULTS = ("doc", "full")  # of unit and window


class _Score(NamedTuple):
    """The scores of one entry of the log, and the settings of its vectors."""

    collection: str
    settings: tuple[str, ...]
    scores: dict[str, float]


def model_card(
    name: str,
    resolved: ResolvedRecipe,
    made: ExportedModel,
    log: Path | None,
    note: Callable[[str], None],
) -> str:
    """Return the card of a model under the name `name`.

    With a score log, the card contains the entries of runs with the weights of this model; `note` gets the
    number of all other entries. Raises DataError for a training.json or a log that cannot be read.
    """
    doc, trained = resolved.recipe.doc, read_training_record(resolved.folder.path)
    scores = _scores(log, doc.weights, note) if log else []
    base = _base(resolved, trained)
    data = ModelCardData(
        base_model=base if _is_hub_name(base) else None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=[*_TAGS, *(["landmark-pooling"] if doc.pool == "lmk" else [])],
        model_name=name if scores else None,
        eval_results=list(_results(scores)) or None,
    )
    sections = [
        f"---\n{data.to_yaml()}\n---",
        f"# {name}",
        _summary(resolved, trained),
        _use(resolved, made),
        _evaluation(scores, trained),
        _training(trained) if trained else "",
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _base(resolved: ResolvedRecipe, trained: TrainingRecord | None) -> str:
    """Return the name of the base model, with the name on the hub for the model of the extra `demo`."""
    base = trained["base"] if trained else resolved.folder.name
    return _MINILM if base == MINILM else base


def _is_hub_name(name: str) -> bool:
    """Return whether a model is known by its name elsewhere: neither a path, nor a name of lmk."""
    parts = name.split("/")
    return (
        len(parts) == 2
        and all(parts)
        and not name.startswith((".", "~"))
        and not Path(name).exists()
    )


def _public(spelling: str) -> str:
    """Return a model or a source, such as 'docs.jsonl,negatives=run.trec', without the folders of this
    machine.
    """
    return ",".join(map(_public_word, spelling.split(",")))


def _public_word(word: str) -> str:
    key, equals, value = word.rpartition("=")
    here = value.startswith((".", "/", "~")) or (value not in OWN_NAMES and Path(value).exists())
    return f"{key}{equals}{Path(value).name if here else value}"


def _summary(resolved: ResolvedRecipe, trained: TrainingRecord | None) -> str:
    doc, query = resolved.recipe.doc, resolved.recipe.query
    rows = [
        ("base model", f"`{_public(_base(resolved, trained))}`"),
        ("pooler", f"`{doc.pool}`"),
        ("granularity", _granularity(doc, trained)),
        ("positions", f"{doc.max_length:,} (queries {query.max_length:,})"),
        ("window", Window(resolved.folder.window).length if resolved.folder.window else ""),
        ("query prompt", f"`{query.prompt}`" if query.prompt else ""),
        ("document prompt", f"`{doc.prompt}`" if doc.prompt else ""),
        ("similarity", doc.similarity),
    ]
    lines = [f"| {what} | {value} |" for what, value in rows if value]
    return "\n".join(["| | |", "|---|---|", *lines])


def _granularity(doc: EncoderConfig, trained: TrainingRecord | None) -> str:
    """Return the granularity, and those of the training."""
    drawn = [gran for gran in trained["granularities"] if gran] if trained else []
    if not doc.gran:
        return ""
    rest = f" (training drew from {', '.join(drawn)})" if len(drawn) > 1 else ""
    return f"{doc.gran}{' tokens' if doc.gran.tokens else ''}{rest}"


def _use(resolved: ResolvedRecipe, made: ExportedModel) -> str:
    packages = " and ".join(filter(None, ("lmkcli", resolved.recipe.doc.pool_package)))
    needs = (
        f"Install {packages}, for the modules of the folder.\n\n" if made.trust_remote_code else ""
    )
    if made.proposed:
        needs = "The module LandmarkTransformer is needed (pull request 3642 of sentence-transformers).\n\n"
    call = made.loaded_by.replace("(folder", '("REPOSITORY"')
    return f"""## Use

{needs}```python
from sentence_transformers import SentenceTransformer

model = {call}
queries = model.encode_query(["a question"])
documents = model.encode_document(["a text", "another text"])
print(model.similarity(queries, documents))
```

```bash
lmk encode COLLECTION -m REPOSITORY -o vectors/
```"""


def _scores(log: Path, weights: str, note: Callable[[str], None]) -> list[_Score]:
    """Return the newest score of each collection and setting, for runs with vectors of these weights."""
    found: dict[tuple[str, tuple[str, ...]], _Score] = {}
    others = 0
    for entry in scorelog.read(log):
        if weights not in _weights(entry):
            others += 1
            continue
        values = (str(scorelog.setting(entry, name) or "") for name in _SHOWN)
        settings = tuple("" if value in _DEFAULTS else value for value in values)
        collection = _public(scorelog.judged_by(entry)) or "unknown"
        found[collection, settings] = _Score(collection, settings, entry["scores"])
    if others:
        note(f"{log}: {others:,} entries of runs without this model are not in the card")
    return list(found.values())


def _weights(entry: scorelog.LogEntry) -> Iterator[str]:
    """Yield the digests of the weights in the lineage of an entry."""
    for step in entry.get("lineage", []):
        recipe = step["identity"].get("recipe")
        if isinstance(recipe, dict) and isinstance(recipe.get("doc"), dict):
            yield str(recipe["doc"].get("weights"))


def _results(scores: Sequence[_Score]) -> Iterator[EvalResult]:
    """Yield the entries of the model index in the metadata."""
    for score in scores:
        for measure, value in score.scores.items():
            yield EvalResult(
                task_type="information-retrieval",
                task_name="Information Retrieval",
                dataset_type=score.collection.lower().replace(" ", "-"),
                dataset_name=score.collection,
                dataset_config=" ".join(filter(None, score.settings)),
                metric_type=measure.lower().replace("@", "_at_"),
                metric_name=measure,
                metric_value=round(value, 6),
            )


def _evaluation(scores: Sequence[_Score], trained: TrainingRecord | None) -> str:
    """Return the scores of the log, and those of the development set of the training."""
    parts = []
    if scores:
        measures = list(dict.fromkeys(name for score in scores for name in score.scores))
        used = [n for n, _ in enumerate(_SHOWN) if any(score.settings[n] for score in scores)]
        header = ["collection", *(_SHOWN[n] for n in used), *measures]
        rows = [header, ["---"] * len(header)]
        for score in scores:
            values = (score.scores.get(name) for name in measures)
            shown = ["" if value is None else f"{value:.4f}" for value in values]
            rows.append([score.collection, *(score.settings[n] for n in used), *shown])
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    dev = trained.get("dev") if trained else None
    if dev and (published := dev["published"]):
        rows = [["development set", dev["measure"]], ["---", "---"]]
        rows += [[_public(name), f"{value:.4f}"] for name, value in published["dev"].items()]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(
            f"During training, the weights of step {published['step']:,} had the best scores:\n\n{table}"
        )
    return "\n\n".join(["## Scores", *parts]) if parts else ""


def _training(trained: TrainingRecord) -> str:
    sources = "\n".join(
        f"- `{_public(source['name'])}`: {source['examples']:,} examples, weight {source['weight']:g}"
        for source in trained["sources"]
    )
    settings = "\n".join(
        f"| {name} | {_public(value) if isinstance(value, str) else value} |"
        for name, value in trained["settings"].items()
        if value not in (None, "", [], ()) and not isinstance(value, dict)
    )
    return f"""## Training

Loss {trained["objective"]}, {trained["steps"]:,} steps, with lmk {trained["version"]}.

{sources}

Digest of the examples: `{trained["data"]}`.

| setting | |
|---|---|
{settings}"""
