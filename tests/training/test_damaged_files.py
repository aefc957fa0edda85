"""Training files and checkpoints with any content: an error that names them, or a training; never a crash.

Hypothesis draws records in the layouts that `lmk train` reads, with values of other types and sizes in their
fields, and damages of the files of a checkpoint.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmkcli.errors import DataError, LmkError, Stopped
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training import training_job
from lmkcli.training.loop import training_run as execution
from lmkcli.training.train_settings import TrainSettings
from tests import levels, tiny
from tests.damage import damage

Models = Callable[[str], Path]
FAST = TrainSettings(
    steps=3, batch_size=2, lr=1e-3, dtype="fp32", device="cpu", save_every=1, log_every=1
)

words = st.sampled_from(
    ["rivers carry water", "birds", "", " ", "\0", "\ud800", "é" * 300, "٣", "[SEP]"]
)
numbers = st.sampled_from(
    [0, 1, -1, 2.5, 1e-320, 1e300, float("nan"), float("inf"), 10**30, 10**400, True, None, "1", "9" * 5000]
)  # fmt: skip
anything = st.recursive(
    words | numbers,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "title", "x"]), inner)
    ),
    max_leaves=5,
)
texts = st.lists(words, max_size=3)
titled = st.lists(st.fixed_dictionaries({"title": words, "text": words}), max_size=2)
scores = st.lists(numbers, max_size=3)


def mostly(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A field of the right type, and in one of four cases another."""
    return st.one_of(strategy, strategy, strategy, anything)


def record(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A record in which each field may be missing."""
    return st.fixed_dictionaries({}, optional={name: mostly(each) for name, each in fields.items()})


PAIRS = [
    record(query=words, pos=texts, neg=texts, pos_scores=scores, neg_scores=scores, prompt=words),
    record(query=words, query_id=words, positive_passages=titled, negative_passages=titled),
    record(anchor=words, positive=words, negative=words, negative_1=words, score=numbers),
    record(question=words, answer=words, label=numbers, labels=scores),
]
asked = st.lists(record(query=words, chunk=numbers), max_size=3)
CHUNKED = record(_id=words, chunks=texts, queries=asked)
line = st.text("rivers\t\"',٣\0\r�", max_size=20) | words | st.just('{"query":')


def first_batch(path: Path, model: Path, **options: Any) -> None:
    """Read a file as `lmk train` does, and place the first batch. Errors of lmk are answers."""
    recipe = RecipeOptions(model=str(model), max_length=32, **options)
    chosen = FAST if "unit" not in options else TrainSettings(**{**vars(FAST), "loss": "insent"})
    with suppress(LmkError):
        job = training_job.plan([str(path)], recipe, chosen)
        next(job.feed(execution.Start()).batches())


few = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def write(path: Path, lines: list[Any]) -> Path:
    """Lines of JSON; Python writes NaN and lone surrogates, as other tools do."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("".join(f"{each}\n" for each in texts), "utf-8", "surrogatepass")
    return path


@few
@given(
    lines=st.lists(st.one_of(*PAIRS, line), min_size=1, max_size=5),
    suffix=st.sampled_from(["jsonl", "tsv"]),
)
def test_files_of_pairs(
    tiny_model: Models, tmp_path_factory: pytest.TempPathFactory, lines: list[Any], suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"pairs.{suffix}"
    if suffix == "tsv":
        lines = [
            each if isinstance(each, str) else "\t".join(map(str, each.values())) for each in lines
        ]
    first_batch(write(path, lines), tiny_model("bert"))


@few
@given(lines=st.lists(CHUNKED | line, min_size=1, max_size=4))
def test_files_of_documents_in_chunks(
    tiny_model: Models, tmp_path_factory: pytest.TempPathFactory, lines: list[Any]
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "documents.jsonl", lines)
    first_batch(path, tiny_model("bert"), pool="lmk", gran="given", unit="chunk")


@pytest.fixture(scope="module")
def half(
    tiny_model: Models, tmp_path_factory: pytest.TempPathFactory
) -> tuple[training_job.TrainJob, Path, bytes]:
    """A training, its folder after two of three steps, and the weights with which it ends."""
    root = tmp_path_factory.mktemp("half")
    pairs = [{"query": tiny.sentence(i, 4), "positive": tiny.sentence(i, 9)} for i in range(8)]
    tiny.write_jsonl(root / "pairs.jsonl", pairs)
    recipe = RecipeOptions(model=str(tiny_model("bert")), max_length=16)
    plan = training_job.plan([str(root / "pairs.jsonl")], recipe, FAST)
    steps = iter(range(1, 9))
    with pytest.raises(Stopped):
        execution.run(plan, root / "model", Report(stopping=lambda: next(steps) == 2))
    execution.run(plan, shutil.copytree(root / "model", root / "whole"), Report())
    return plan, root / "model", (root / "whole" / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", levels.sample("damaged checkpoints", range(400), 25))
def test_checkpoints(
    half: tuple[training_job.TrainJob, Path, bytes], tmp_path: Path, seed: int
) -> None:
    """A damaged file is refused, or the weights are the same. In half of the cases its digest fits."""
    plan, whole, weights = half
    folder, chance = shutil.copytree(whole, tmp_path / "model"), random.Random(seed)
    checkpoint = folder / "checkpoints" / "checkpoint-2"
    file = chance.choice(sorted(checkpoint.iterdir()))
    said = f"{file.name} {damage(file, chance)}"
    fitting = chance.random() < 0.5 and file.is_file() and file.name != "digests.json"
    if fitting:
        digests = json.loads((checkpoint / "digests.json").read_text())
        digests["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
        (checkpoint / "digests.json").write_text(json.dumps(digests))
    refused = False
    try:
        execution.run(plan, folder, Report())
    except DataError:
        refused = True
    assert refused or fitting or (folder / "model.safetensors").read_bytes() == weights, said
