"""Constructors of operations in Python: signatures, texts of settings, and errors with suggestions."""

import copy
import inspect
import pickle
from typing import Any

import pytest

import lmkcli
from lmkcli.catalog import VERBS
from lmkcli.errors import LmkError
from lmkcli.spec.option import options


@pytest.mark.parametrize("name", VERBS)
def test_the_signature_has_the_settings_in_plain_types(name: str) -> None:
    kind = VERBS.load(name)
    found = inspect.signature(kind)
    assert set(found.parameters) == {option.name for option in options(kind)}
    assert "Flag" not in str(found)
    assert "Annotated" not in str(found)
    for option in options(kind):
        required = found.parameters[option.name].default is inspect.Parameter.empty
        assert required == option.required


def test_a_signature_names_the_types_that_people_pass() -> None:
    found = inspect.signature(lmkcli.Encode).parameters
    assert str(found["output"]) == "output: str | Path | None = None"
    assert str(found["gran"]) == "gran: int | str | None = None"
    assert str(found["model"]) == "model: str | Path"
    assert str(found["source"]) == "source: Source"
    assert found["source"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    runs = inspect.signature(lmkcli.Evaluate).parameters["runs"]
    assert str(runs) == "runs: str | Path | Sequence[str | Path]"


@pytest.mark.parametrize("name", VERBS)
def test_the_docstring_explains_each_setting(name: str) -> None:
    kind = VERBS.load(name)
    text = kind.__doc__
    assert text.startswith(kind.summary.partition("\n")[0])
    for option in options(kind):
        assert f"\n    {option.name}: " in text
    assert "--" not in text.partition("Args:")[2].replace("trec_eval --", "")


ENCODE = {"source": "notes.jsonl", "model": "minilm", "output": "vectors"}


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"batchsize": 8}, ["Encode", "'batchsize'", "did you mean batch_size?"]),
        ({"chunk_size": 64}, ["Encode", "'chunk_size'", "use gran"]),
        ({"granularity": 64}, ["use gran"]),
        ({"dtyp": "fp32"}, ["did you mean dtype (auto, fp32, bf16 or fp16)?"]),
        ({"colour": "red"}, ["help(lmkcli.Encode)"]),
        ({"gran": "sentense"}, ["sentense", "'sentence'"]),
        ({"unit": "docs"}, ["docs", "doc, chunk, token"]),
        ({"pool": "maen"}, ["maen", "did you mean", "mean"]),
        ({"dtype": "float16"}, ["float16", "auto, fp32, bf16 or fp16"]),
        ({"extend": "double"}, ["double", "interpolate"]),
        ({"batch_size": 0}, ["batch"]),
    ],
)
def test_a_wrong_setting_is_an_error_at_once(settings: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(LmkError) as caught:
        lmkcli.Encode(**ENCODE | settings)  # type: ignore[arg-type]
    assert all(fact in str(caught.value) for fact in facts), caught.value


def test_wrong_settings_of_other_operations_are_errors_at_once() -> None:
    with pytest.raises(LmkError, match=r"ndcg_cut_10.*did you mean nDCG@10"):
        lmkcli.Evaluate("a.trec", measure="ndcg_cut_10")
    with pytest.raises(LmkError, match="rff: write rrf"):
        lmkcli.Search("v", "q.jsonl", others=["w"], fuse="rff", output="a.trec")
    with pytest.raises(LmkError, match="Search has no setting 'top_k'; use k"):
        lmkcli.open_index("v", top_k=3)  # type: ignore[call-arg]


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(LmkError, match="Encode needs source: "):
        lmkcli.Encode(model="minilm")  # type: ignore[call-arg]
    with pytest.raises(LmkError, match="Encode needs model: "):
        lmkcli.Encode("notes.jsonl")  # type: ignore[call-arg]


def test_operations_can_be_copied_and_pickled() -> None:
    encode = lmkcli.Encode("notes.jsonl", model="minilm", gran=64, output="vectors")
    assert copy.deepcopy(encode) == encode == pickle.loads(pickle.dumps(encode))
    assert encode.changed_to(gran=32).gran == "32"
