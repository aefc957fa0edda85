"""lmk analyze on the command line: tables, JSON, figures and their records."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.artifact import manifest
from lmkcli.plugins.analysis import analyze
from lmkcli.plugins.analysis.curves import FigureManifest
from lmkcli.plugins.analysis.maps import Map

pytest.importorskip("matplotlib")

Lmk = Callable[..., Any]


@pytest.fixture
def chunks(
    lmk: Lmk, tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:  # fmt: skip
    """Vectors of the chunks of a small collection."""
    monkeypatch.chdir(tmp_path)
    how = ["--pool", "mean", "--unit", "chunk", "--gran", 4]
    lmk("encode", beir, "-m", tiny_model("bert"), *how, "-o", "v")
    return Path("v")


def test_attention_is_a_line_for_each_pooler(
    lmk: Lmk, tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    figure = tmp_path / "a.svg"
    words = [
        "analyze",
        "attention",
        beir,
        "-m",
        tiny_model("bert"),
        "--pool",
        "cls",
        "--pool",
        "lmk",
    ]
    words += ["--gran", 4, "--docs", 3, "--min-tokens", 10, "--bins", 4, "-o", figure]
    done = lmk(*words)
    assert "position" in done.out
    assert "on special tokens" in done.out
    assert "3 documents" in done.err
    text = figure.read_text()
    assert ">cls<" in text
    assert ">lmk<" in text
    made = manifest.read_file(figure.with_name("a.svg.json"), FigureManifest)
    assert made.kind == "figure"
    assert [side["doc"]["pool"] for side in made.identity["recipes"]] == ["cls", "lmk"]
    assert made.facts.operation["docs"] == 3
    shown = lmk(*words, "--json").json
    assert shown == made.facts.shown
    assert [len(line["points"]) for line in shown] == [4, 4]
    each = lmk(*words[:5], "--pool", "cls", "--min-tokens", 30, "--layers", "each", "--json").json
    assert [line["name"] for line in each] == ["cls layer 1", "cls layer 2"]


def test_landmarks(lmk: Lmk, tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]) -> None:
    words = [
        "analyze",
        "landmarks",
        beir,
        "-m",
        tiny_model("bert"),
        "--min-tokens",
        20,
        "--docs",
        3,
    ]
    shown = lmk(*words, "--gran", 4, "--json", "-o", tmp_path / "l.svg").json
    assert shown["documents"] == 3
    assert set(shown["hits"]) == {"left", "right", "either", "chance"}
    assert ">Hit@k<" in (tmp_path / "l.svg").read_text()
    assert "--gran is missing" in lmk(*words, code=2).err


def test_lengths(lmk: Lmk, tmp_path: Path, beir: Path, tiny_model: Callable[[str], Path]) -> None:
    shown = lmk("analyze", "lengths", beir, "--json", "-o", tmp_path / "l").json
    assert (tmp_path / "l.svg").read_text().startswith("<?xml")  # the default format
    assert shown["documents"] == 60
    assert sum(shown["shares"]) == pytest.approx(1)
    tokens = lmk("analyze", "lengths", beir, "-m", tiny_model("bert"), "--json").json
    assert (shown["what"], tokens["what"]) == ("words", "tokens")
    assert tokens["mean"] > shown["mean"]


def test_a_map_and_its_colours(lmk: Lmk, chunks: Path, beir: Path) -> None:
    shown = lmk("analyze", "map", chunks, "--by", "doc", "--docs", 5, "--json", "-o", "m.svg").json
    assert len({each["id"] for each in shown}) == 5
    assert shown[0].keys() == {"id", "chunk", "x", "y", "value"}
    assert "component 1" in Path("m.svg").read_text()
    assert "correlation" in lmk("analyze", "map", chunks, "--by", "chunk", "-o", "m.png").out
    titles = lmk("analyze", "map", chunks, "--by", "title", "--json").json
    assert any(each["value"] for each in titles)
    assert "nothing" in lmk("analyze", "map", chunks, "--by", "nothing", code=3).err


def test_values_that_are_all_the_same_have_no_correlation() -> None:
    places = np.array([[0, 0], [1, 0], [2, 0]], np.float32)
    for values, wanted in (([0.0, 0.0, 0.0], [None, None]), ([2.0, 1.0, 0.0], [-1.0, None])):
        found = Map(places, ["a", "b", "c"], [0, 0, 0], values, ("x", "y"))
        assert list(analyze._groups(found, "chunk")) == [["correlation with it", 3, *wanted]]


@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_a_map_by_tsne_has_a_fixed_seed(lmk: Lmk, chunks: Path) -> None:
    maps = [lmk("analyze", "map", chunks, "--method", "tsne", "--json").json for _ in range(2)]
    assert maps[0] == maps[1]
    assert len({(dot["x"], dot["y"]) for dot in maps[0]}) == len(maps[0]) > 3


def test_lengths_in_characters_are_not_those_of_tokens(lmk: Lmk, beir: Path) -> None:
    shown = lmk("analyze", "lengths", beir, "--by", "characters").out
    assert shown.split()[0] == "characters"
    err = lmk("analyze", "lengths", beir, "--by", "characters", "-m", "minilm", code=2).err
    assert "no effect with -m" in err
    assert "--by colour" in lmk("analyze", "lengths", beir, "--by", "colour", code=2).err


@pytest.mark.skipif(find_spec("umap") is not None, reason="UMAP is installed")
def test_umap_that_is_not_installed_names_its_extra(lmk: Lmk, chunks: Path) -> None:
    refused = lmk("analyze", "map", chunks, "--method", "umap", code=3)
    assert "lmkcli[umap]" in refused.err


def test_similarity_of_a_document_s_chunks(lmk: Lmk, chunks: Path, beir: Path) -> None:
    name = json.loads((beir / "corpus.jsonl").read_text().splitlines()[0])["_id"]
    words = ["analyze", "similarity", chunks, "--doc", name]
    shown = lmk(*words, "--json", "-o", "s.svg").json
    count = len(shown["cosines"])
    assert [len(row) for row in shown["cosines"]] == [count] * count
    assert all(shown["cosines"][i][i] == pytest.approx(1, abs=1e-3) for i in range(count))
    assert len(lmk(*words).out.splitlines()) == count + 1
    assert "no document 'x'" in lmk("analyze", "similarity", chunks, "--doc", "x", code=3).err


def test_what_is_refused(lmk: Lmk, chunks: Path, beir: Path) -> None:
    assert "write attention, landmarks" in lmk("analyze", "atention", beir, code=2).err
    assert "-m/--model is missing" in lmk("analyze", "attention", beir, code=2).err
    assert "--gran has no effect" in lmk("analyze", "map", chunks, "--gran", 3, code=2).err
    Path("x.svg.json").write_text("{}")
    refused = lmk("analyze", "map", chunks, "-o", "x.svg", code=3)
    assert "x.svg.json exists" in refused.err
    assert not Path("x.svg").exists()
    assert ".png, .svg" in lmk("analyze", "map", chunks, "-o", "x.bmp", code=2).err
