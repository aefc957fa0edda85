"""lmk plot and lmk eval --plot on the command line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmkcli.system.atomic import exclusive

pytest.importorskip("matplotlib")

Lmk = Callable[..., Any]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of four queries: `good` finds d1 first, `bad` second."""
    monkeypatch.chdir(tmp_path)
    Path("qrels.txt").write_text("".join(f"q{i} 0 d1 1\n" for i in range(4)))
    for name, docs in {"good": "d1 d2", "bad": "d2 d1"}.items():
        lines = [
            f"q{i} Q0 {doc} {rank} {9 - rank} {name}\n"
            for i in range(4)
            for rank, doc in enumerate(docs.split(), 1)
        ]
        Path(f"{name}.trec").write_text("".join(lines))
    return tmp_path


LINK = {
    "path": "v",
    "kind": "vectors",
    "execution": {},
    "digest": "",
    "collection": "",
    "facts": {},
}


def log(granularities: dict[str, float]) -> None:
    """A score log of runs over vectors with these granularities."""
    lines = [
        {
            "scores": {"nDCG@10": score, "R@100": 0.5},
            "lineage": [LINK | {"identity": {"recipe": {"doc": {"gran": gran}}}}],
        }
        for gran, score in granularities.items()
    ]
    Path("scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_one_command_at_a_time_draws_a_figure(lmk: Lmk, runs: Path) -> None:
    log({"16": 0.6, "64": 0.66})
    Path("docs.jsonl").write_text('{"_id": "a", "text": "one two three"}\n')
    commands = [
        ("plot", "scores.jsonl", "--x", "gran", "-o", "figure.svg"),
        ("analyze", "lengths", "docs.jsonl", "-o", "figure.svg"),
        ("eval", "good.trec", "--qrels", "qrels.txt", "--plot", "figure.svg"),
    ]
    with exclusive(Path("figure.svg")):
        for words in commands:
            assert "is being written by process" in lmk(*words, code=75).err
    assert not Path("figure.svg").exists()
    for words in commands:
        lmk(*words)
    assert not list(Path().glob(".figure*"))


def test_a_curve_over_a_parameter(lmk: Lmk, runs: Path) -> None:
    log({"16": 0.6, "64": 0.66, "256": 0.63, "sentence": 0.5})
    words = ["plot", "scores.jsonl", "--x", "gran", "-o", "curve.svg"]
    done = lmk(*words, "-m", "nDCG@10")
    assert done.out == "curve.svg: 3 points, 1 lines\n"
    assert "gran sentence" in done.err
    text = Path("curve.svg").read_text()
    assert all(f">{word}<" in text for word in ("gran", "nDCG@10", "16", "64", "256"))
    assert lmk(*words).out == "curve.svg: 6 points, 2 lines\n"
    assert ">R@100<" in Path("curve.svg").read_text()


def test_impossible_plots_are_refused(lmk: Lmk, runs: Path) -> None:
    log({"16": 0.6})
    unknown = lmk("plot", "scores.jsonl", "--x", "dim", "-o", "c.svg", code=2)
    assert "--x dim" in unknown.err
    assert "numeric parameters: gran" in unknown.err
    assert "-o/--output" in lmk("plot", "scores.jsonl", "--x", "gran", code=2).err
    assert ".png, .svg" in lmk("plot", "scores.jsonl", "--x", "gran", "-o", "c.bmp", code=2).err
    unknown = lmk(
        "plot", "scores.jsonl", "--x", "gran", "-o", "c.svg", "-m", "R@100", "-m", "AP", code=2
    )
    assert "nDCG@10, R@100" in unknown.err
    by = lmk("plot", "scores.jsonl", "--x", "gran", "--by", "pol", "-o", "c.svg", code=2)
    assert "--by pol: no entry of" in by.err
    assert not Path("c.svg").exists()
    assert "no such score log" in lmk("plot", "none", "--x", "gran", "-o", "c.svg", code=3).err


def test_runs_are_bars_with_intervals(lmk: Lmk, runs: Path) -> None:
    words = ["eval", "good.trec", "bad.trec", "--qrels", "qrels.txt", "-m", "RR@10", "-m", "P@1"]
    lmk(*words, "--plot", "bars.svg")
    text = Path("bars.svg").read_text()
    for word in (">RR@10<", ">P@1<", ">1.000<", ">0.500<", ">0.000<", "of 4 queries"):
        assert word in text


def test_with_a_baseline_differences_are_plotted(lmk: Lmk, runs: Path) -> None:
    words = ["eval", "good.trec", "bad.trec", "--qrels", "qrels.txt", "-m", "RR@10"]
    lmk(*words, "--baseline", "bad.trec", "--plot", "d.svg")
    text = Path("d.svg").read_text()
    assert ">good<" in text  # and no .trec
    assert re.search(r"better than bad\b", text)
    assert text.count("fill: #0072b2") == 4  # four wins, no loss
    assert "fill: #d55e00" not in text


def test_groups_of_queries_are_a_curve(lmk: Lmk, runs: Path, beir: Path) -> None:
    lmk("index", beir, "--kind", "bm25", "-o", "bm25")
    lmk("search", "bm25", beir, "-o", "run.trec")
    words = ["eval", "run.trec", "-m", "nDCG@10", "--by", "length", "--bins", "0,20,200"]
    shown = lmk(*words, "--plot", "c.svg", "--json").json
    text = Path("c.svg").read_text()
    assert "length, median of each group" in text
    assert len(shown) == 2
    assert len(re.findall(r'<use xlink:href="#m[0-9a-f]+"[^>]*fill: #0072b2', text)) == 2


def test_ir_metadata_is_written_next_to_the_run(lmk: Lmk, runs: Path) -> None:
    words = ["eval", "good.trec", "--qrels", "qrels.txt", "-m", "RR@10", "--ir-metadata"]
    done = lmk(*words)
    assert "good.trec.ir_metadata.yml" in done.err
    assert 'tag: "good"' in Path("good.trec.ir_metadata.yml").read_text()
    lmk(*words)  # a second time, with the same result
    assert "exists already" in lmk(*words, "-m", "P@1", code=3).err


def test_the_curves_of_a_training(
    lmk: Lmk, runs: Path, beir: Path, tiny_model: Callable[[str], Path]
) -> None:
    lines = [{"query": f"a {i}", "positive": f"b {i}"} for i in range(20)]
    Path("pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["train", "pairs.jsonl", "-m", tiny_model("bert"), "--pool", "mean", "-o", "model"]
    more = ["--steps", 6, "--batch-size", 4, "--log-every", 2, "--dims", "32,16"]
    lmk(*words, *more, "--dev", f"{beir}:test", "--dev-every", 3)
    done = lmk("plot", "model", "-o", "curves.svg")
    assert done.out == f"curves.svg: {3 * 3 + 3 + 2} points, 5 lines\n"
    text = Path("curves.svg").read_text()
    for word in ("loss", "infonce@32", "infonce@16", "learning rate", "nDCG@10", "step"):
        assert f">{word}<" in text
    assert "no effect" in lmk("plot", "model", "--x", "gran", "-o", "c.svg", code=2).err
    assert "log of a training" in lmk("plot", beir, "-o", "c.svg", code=3).err
    with open("model/log.jsonl", "a") as log:
        log.write('{"step": 7, "lo')  # a line that another process is writing
    lmk("plot", "model", "-o", "curves.png")


def test_a_figure_of_very_many_measures_is_refused(lmk: Lmk, runs: Path) -> None:
    entry = {"scores": {f"m{number}": 0.5 for number in range(60_000)}}
    Path("scores.jsonl").write_text(json.dumps(entry) + "\n")
    refused = lmk("plot", "scores.jsonl", "--x", "gran", "-o", "curve.svg", code=2)
    assert "at most 50 measures" in refused.err
    assert len(refused.err) < 1000


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_only_a_figure_is_overwritten(lmk: Lmk, runs: Path, suffix: str) -> None:
    log({"16": 0.6, "64": 0.66})
    Path("docs.jsonl").write_text('{"_id": "a", "text": "one two three"}\n')
    figure = Path(f"figure.{suffix}")
    commands: list[tuple[str, ...]] = [
        ("plot", "scores.jsonl", "--x", "gran", "-o", figure.name),
        ("eval", "good.trec", "--qrels", "qrels.txt", "-m", "P@1", "--plot", figure.name),
        ("analyze", "lengths", "docs.jsonl", "-o", figure.name),
    ]
    lmk(*commands[0])
    lmk(*commands[0])  # it draws its own figure again
    lmk(*commands[1])
    for content in (b"%PDF-1.4 a paper", b"<svg/>", b"\x89PNG a photo"):
        for command in commands:
            figure.write_bytes(content)
            failed = lmk(*command, code=2)
            assert f"{figure.name} is not a figure" in failed.err
            assert figure.read_bytes() == content
    Path("run.trec").write_text("q Q0 d 1 1 t\n")
    assert "suffix" in lmk("plot", "scores.jsonl", "--x", "gran", "-o", "run.trec", code=2).err
    assert Path("run.trec").read_text() == "q Q0 d 1 1 t\n"
