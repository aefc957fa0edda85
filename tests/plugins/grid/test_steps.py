"""Steps: settings that change keys, settings that share a key, settings without an effect."""

from pathlib import Path

import pytest

from lmkcli.errors import UsageError
from lmkcli.plugins.grid.gridfile import GridCell
from lmkcli.plugins.grid.steps import CellSteps, GridStep, file_stats


def steps(**axes: str) -> list[GridStep]:
    """The steps of a cell with one collection, which is not on this machine; '__' is a dot."""
    return CellSteps(_cell(**axes), Path("results")).steps


def _cell(**axes: str) -> GridCell:
    given = {name.replace("__", ".").replace("_", "-"): (value,) for name, value in axes.items()}
    return GridCell("a", {"collection": ("some",), "measures": ("P@1",), **given})


def keys(**axes: str) -> list[str]:
    return [step.key for step in steps(**axes)]


def test_keys_depend_on_effective_settings_and_on_the_previous_steps() -> None:
    encode, search, scored = keys(model="some/model", pool="cls", k="10")
    assert keys(model="some/model", pool="cls", k="10", device="cpu", batch_tokens="9") == [
        *(encode, search, scored)
    ]
    assert keys(model="some/model", pool="cls", k="20")[0] == encode
    assert not {search, scored} & {*keys(model="some/model", pool="cls", k="20")}
    assert not {encode, search, scored} & {*keys(model="some/model", pool="mean", k="10")}
    assert not {encode, search, scored} & {*keys(model="other/model", pool="cls", k="10")}


def test_a_step_reads_the_outputs_of_the_previous_steps() -> None:
    train, encode, search, scored = steps(model="some/model", train__examples="x.jsonl")
    assert [step.needs for step in (train, encode, search, scored)] == [
        *((), (train.key,), (encode.key,), (search.key,))
    ]
    assert encode.operation.model == f"results/steps/{train.key}/model"
    assert search.operation.words()[:3] == ["search", f"results/steps/{encode.key}/vectors", "some"]


@pytest.mark.parametrize(
    "axis", [{"train__pool": "cls"}, {"train__examples": "x"}, {"pretrain__collections": "x"}]
)
def test_settings_of_a_model_have_no_effect_on_an_index_of_words(axis: dict[str, str]) -> None:
    (name,) = (key.replace("__", ".") for key in axis)
    with pytest.raises(UsageError, match=rf'and {name} = \[""\]'):
        steps(kind="bm25", **axis)
    index, _, _ = steps(kind="bm25", device="cpu", k1="1.2")
    assert index.operation.words()[:2] == ["index", "some"]


def test_trainings_differ_by_their_texts_and_the_options_of_these(tmp_path: Path) -> None:
    """The same file with other options is another training, and so are texts that are not here."""
    (tmp_path / "pairs.jsonl").write_text("{}")
    examples = [f"{tmp_path}/pairs.jsonl,per-query={n}" for n in (1, 7)] + ["a/hub", "b/hub"]
    trained = [keys(model="some/model", train__examples=each)[0] for each in examples]
    assert len(set(trained)) == 4
    texts = [f"{tmp_path}/pairs.jsonl,blocks={n}" for n in (0, 1)]
    made = [keys(model="some/model", pretrain__collections=each)[0] for each in texts]
    assert len(set(made)) == 2


def test_files_that_a_command_reads_are_a_part_of_its_key(tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    found = []
    for width in ("64", "128"):
        file.write_text(f'{{"model_type": "bert", "hidden_size": {width}}}')
        file_stats.cache_clear()
        cell = {"pretrain__architecture": str(file), "pretrain__tokenizer": "some/model"}
        found += keys(pretrain__collections="wiki", **cell)[:2]
    assert len(set(found)) == 4


def test_a_lexical_search_is_reranked_by_the_vectors_of_the_cell() -> None:
    train, encode, index, search, _ = steps(
        kind="bm25", model="some/model", train__examples="x", search__rerank="vectors"
    )
    assert encode.needs == (train.key,)
    assert index.key == steps(kind="bm25")[0].key
    assert search.needs == (index.key, encode.key)
    words = search.operation.words()
    assert words[:3] == ["search", f"results/steps/{index.key}/index", "some"]
    assert words[words.index("--rerank") + 1] == f"results/steps/{encode.key}/vectors"
    fused = steps(kind="bm25", model="some/model", search__with="vectors", search__fuse="rrf")[-2]
    words = fused.operation.words()
    assert words[words.index("--with") + 1] == f"results/steps/{fused.needs[1]}/vectors"
    other = CellSteps(_cell(kind="bm25", model="some/model", search__rerank="vectors"), Path("b"))
    plain = steps(kind="bm25", model="some/model", search__rerank="vectors")
    assert [each.key for each in other.steps] == [each.key for each in plain]


def test_vectors_do_not_rerank_themselves() -> None:
    with pytest.raises(UsageError, match=r"search.rerank .*kind = \"bm25\""):
        steps(model="some/model", search__rerank="vectors")


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"normalize": "yes"}, "--normalize .*true or false, .*yes"),
        ({"max_length": "many"}, "--max-length 'many': .*whole number"),
        ({"k": "0"}, r"lmk search: --hits 0: .*at least 1\b"),
        ({"dtype": "fp8"}, "--dtype fp8: write auto"),
    ],
)
def test_values_that_a_command_refuses(axes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        steps(model="some/model", **axes)


def test_values_have_the_types_of_the_fields() -> None:
    encode, _, _ = steps(model="some/model", normalize="false", max_length="64", gran="16")
    operation = encode.operation
    assert (operation.normalize, operation.max_length, operation.gran) == (False, 64, "16")
