"""lmk grid: all combinations of one file, each shared step once, one table."""

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from lmkcli.provenance import scorelog
from tests import tiny
from tests.conftest import Lmk

FILE = """
[grid]
collections = {collections}
model = "{model}"
pool = ["mean", "lmk"]
gran = ["", 16]
max-length = [32, 128]
k = 20
measures = ["nDCG@10", "R@5"]
dtype = "fp32"
store-dtype = "fp32"
[table]
baseline = {{ pool = "mean", max-length = 32 }}
"""


@pytest.fixture(scope="module")
def file(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path], beir: Path
) -> Path:
    """A grid of two poolers and two lengths on two collections; half of the cells are invalid."""
    folder = tmp_path_factory.mktemp("grid")
    other = tiny.collection(folder / "other", docs=40, queries=10)
    text = FILE.format(collections=json.dumps([str(beir), str(other)]), model=tiny_model("bert"))
    (folder / "grid.toml").write_text(text)
    return folder / "grid.toml"


@pytest.fixture
def done(lmk: Lmk, file: Path) -> Path:
    """The folder of the results of the grid, made once."""
    folder = file.parent / "results"
    if not folder.exists():
        lmk("grid", file, "-o", folder, "-f", "json")
    return folder


def test_a_plan_counts_shared_steps_and_reports_skipped_cells(
    lmk: Lmk, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMK_ENCODE_UNIT", "nonsense")  # steps run without such variables
    planned = lmk("grid", file, "-o", "nowhere", "--dry-run")
    assert not Path("nowhere").exists()
    assert "skipped" in planned.err
    assert "--gran 16 " in planned.err
    assert "--gran" in planned.err
    counts = {row.split()[0]: row.split()[1:] for row in planned.out.splitlines()[-4:]}
    assert {verb: row[:4] for verb, row in counts.items()} == {
        "tokenize": ["8", "2", "2", "2"],
        "encode": ["8", "8", "0", "8"],
        "search": ["8", "8", "0", "8"],
        "eval": ["8", "8", "0", "8"],
    }
    assert counts["eval"][4:] == ["-", "-"]
    assert counts["encode"][5] == "kB"  # disk, before the time


@pytest.mark.parametrize(
    ("axis", "value", "code", "message"),
    [
        ("collections", "./nothing", 3, r"lmk encode: \./nothing: "),
        ("model", "./nothing", 3, r"model folder \./nothing; "),
        ("pool", "lmkk", 2, r"pooler 'lmkk': .* lmk\?"),
    ],
)
def test_a_missing_input_is_an_error_instead_of_a_skipped_cell(
    lmk: Lmk, file: Path, tmp_path: Path, axis: str, value: str, code: int, message: str
) -> None:
    table = tomllib.loads(file.read_text())["grid"]
    axes = {key: given for key, given in table.items() if key != "where"}
    axes[axis] = [*([each] if isinstance(each := axes[axis], str) else each), value]
    grid = tmp_path / "grid.toml"
    grid.write_text("\n".join(["[grid]", *(f"{key} = {json.dumps(axes[key])}" for key in axes)]))
    assert re.search(message, lmk("grid", grid, "-o", tmp_path / "r", code=code).err)
    assert not (tmp_path / "r").exists()


def test_a_plan_estimates_encodings_and_explains_missing_estimates(
    lmk: Lmk, tmp_path: Path, tiny_model: Callable[[str], Path], beir: Path
) -> None:
    models = [str(tiny_model("bert")), "nobody/no-such-model"]
    collections = [str(beir), "beir/quora/test"]  # a known collection that is not on this machine
    grid = tmp_path / "grid.toml"
    grid.write_text(
        f"[grid]\ncollections = {json.dumps(collections)}\nmodel = {json.dumps(models)}\n"
        'pool = "mean"\nmax-length = 32\n'
    )
    planned = lmk("grid", grid, "-o", tmp_path / "r", "--dry-run")
    assert re.search(r"\(2 of 4 .*nobody/no-such-model", planned.err)
    assert re.search(r"\(1 of 4 .*beir/quora/test", planned.err)
    (row,) = [line.split() for line in planned.out.splitlines() if line.startswith("encode ")]
    assert row[5] == "over"
    steps = lmk("grid", grid, "-o", tmp_path / "r", "--dry-run", "--json").json["steps"]
    known = [step for step in steps if "disk" in step]
    assert sum("not known" in step for step in steps) == 3
    alone = lmk(
        "encode", beir, "-m", models[0], "--pool", "mean", "--max-length", "32", "--dry-run", "--json"
    )  # fmt: skip
    assert [step["disk"] for step in known] == [alone.json["disk"]]
    assert known[0]["seconds"] > 0
    assert not (tmp_path / "r").exists()


def test_poolers_that_a_model_does_not_declare_are_noted_once(
    lmk: Lmk, tmp_path: Path, minilm: Path, beir: Path
) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(
        f'[grid]\ncollections = "{beir}"\nmodel = "minilm"\npool = ["mean", "cls", "last"]\n'
        "max-length = [16, 32]\n"
    )
    planned = lmk("grid", grid, "-o", tmp_path / "r", "--dry-run")
    (note,) = [line for line in planned.err.splitlines() if "declares" in line]
    assert re.search(r"minilm declares --pool mean; .*--pool cls, last,.*--pool auto", note)


def test_an_error_of_one_model_skips_only_its_cells(
    lmk: Lmk, tmp_path: Path, tiny_model: Callable[[str], Path], beir: Path
) -> None:
    whole = tiny_model("bert")
    broken = shutil.copytree(whole, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    grid = tmp_path / "grid.toml"
    models = json.dumps([str(broken), str(whole)])
    grid.write_text(
        f'[grid]\ncollections = {json.dumps(str(beir))}\nmodel = {models}\npool = "mean"\n'
    )
    steps = lmk("grid", grid, "-o", tmp_path / "r", "--dry-run", "--json").json["steps"]
    assert [sum(key in step for step in steps) for key in ("not known", "disk")] == [1, 1]


def test_the_numbers_are_those_of_the_commands_typed_one_by_one(
    lmk: Lmk, file: Path, done: Path, beir: Path, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    rows = lmk("grid", file, "-o", done, "-f", "json").json
    assert len(rows) == 16
    vectors, run = tmp_path / "vectors", tmp_path / "run.trec"
    recipe = ["--pool", "lmk", "--gran", "16", "--max-length", "128"]
    words = [*recipe, "--dtype", "fp32", "--store-dtype", "fp32"]
    lmk("encode", beir, "-m", tiny_model("bert"), *words, "-o", vectors)
    lmk("search", vectors, beir, "-k", "20", "-o", run)
    (typed,) = lmk("eval", run, "-m", "nDCG@10", "-m", "R@5", "--json").json
    mine = [
        row for row in rows
        if row["collection"] == str(beir) and row["pool"] == "lmk" and row["max-length"] == "128"
    ]  # fmt: skip
    assert {row["measure"]: row["score"] for row in mine} == pytest.approx(
        {name: typed[name] for name in ("nDCG@10", "R@5")}
    )


def test_reranked_words_have_the_scores_of_the_commands(
    lmk: Lmk, beir: Path, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    """BM25 alone, reranked, fused; and the vectors alone, which the cells share."""
    (tmp_path / "grid.toml").write_text(
        f'[grid]\ncollections = "{beir}"\nmodel = "{tiny_model("bert")}"\npool = "mean"\n'
        'kind = ["exact", "bm25"]\n'
        '[[grid.where]]\nkind = "bm25"\nsearch.rerank = ["", "vectors"]\nsearch.with = ["", "vectors"]\n'
        '[[grid.where]]\nsearch.with = "vectors"\nsearch.fuse = ["rrf"]\n'
        '[[grid.where]]\nkind = "bm25"\nsearch.rerank = ""\nsearch.with = ""\nmodel = [""]\npool = [""]\n'
    )
    results = tmp_path / "results"
    rows = lmk("grid", tmp_path / "grid.toml", "-o", results, "--json").json
    found = {(row["kind"], row["search.rerank"], row["search.with"]): row["score"] for row in rows}
    assert len(found) == 5
    (vectors,) = results.glob("steps/encode-*/vectors")
    (words,) = results.glob("steps/index-*/index")
    for rerank, fuse in [("-", "-"), ("vectors", "-"), ("-", "vectors"), ("vectors", "vectors")]:
        run = tmp_path / f"{rerank}{fuse}.trec"
        stages = ["--rerank", vectors] if rerank == "vectors" else []
        stages += ["--with", vectors, "--fuse", "rrf"] if fuse == "vectors" else []
        lmk("search", words, beir, *stages, "-o", run)
        (typed,) = lmk("eval", run, "-m", "nDCG@10", "--json").json
        assert found["bm25", rerank, fuse] == pytest.approx(typed["nDCG@10"])
    assert len(set(found.values())) > 3


def test_every_step_ran_once_and_a_second_life_runs_none(lmk: Lmk, file: Path, done: Path) -> None:
    logs = [path.read_text() for path in done.glob("steps/*/log.txt")]
    assert len(logs) == 26
    assert all(log.count("$ lmk ") == 1 for log in logs)
    again = lmk("grid", file, "-o", done)
    assert "steps to run" not in again.err
    assert [path.read_text() for path in done.glob("steps/*/log.txt")] == logs


def test_the_table_has_best_values_means_and_tests(lmk: Lmk, file: Path, done: Path) -> None:
    table = lmk("grid", file, "-o", done, "-f", "markdown").out
    head = table.splitlines()[0]
    assert head.startswith("| pool | gran | max-length | measure |")
    assert head.endswith("| mean | geometric mean |")
    assert "value of the column" in table or "No value is significantly higher" in table
    assert "**" in table
    assert "Holm-Bonferroni over 12 tests" in table
    assert re.search("†: .*mean - 32", table)
    wide = lmk("grid", file, "-o", done, "--rows", "pool,gran", "--columns", "max-length").out
    assert wide.split("\n")[0].split() == ["pool", "gran", "measure", "32", "128"]
    both = lmk("grid", file, "-o", done, "--rows", "pool", "--columns", "collection", code=2)
    assert "'mean'" in both.err
    odd = lmk("grid", file, "-o", done, "--baseline", "pool=mean", code=2)
    assert "mean - 32; mean - 128" in odd.err
    both = lmk("grid", file, "-o", done, "--json", "-f", "csv", code=2)
    assert "--json and --format csv" in both.err


def test_the_table_is_followed_by_the_cost_of_the_encodings(
    lmk: Lmk, file: Path, done: Path
) -> None:
    """Poolers and lengths by milliseconds per document and memory: a row for each, over the collections."""
    lines = lmk("grid", file, "-o", done).out.splitlines()
    start = next(n for n, line in enumerate(lines) if "ms per document" in line)
    rows = [line.split() for line in lines[start + 1 : start + 5]]
    assert {(row[0], row[2]) for row in rows} == {
        (pool, length) for pool in ("mean", "lmk") for length in ("32", "128")
    }
    assert all(float(row[3]) > 0 for row in rows)
    assert lines[start].endswith("stored")
    page = (done / "report.html").read_text("utf-8")
    for head in ("ms per document", "peak memory", "stored"):
        assert f"<th><button>{head}</button></th>" in page
    stored = re.search(r'data-value="([\d.]+)">[\d.]+ k?B</td></tr>', page)
    assert stored is not None
    assert float(stored[1]) > 0
    assert "ms per document" not in lmk("grid", file, "-o", done, "-f", "markdown").out
    shown = {(row[0], row[2]): float(row[3]) for row in rows}
    costs: dict[tuple[str, str], set[tuple[str, float, float]]] = {}
    for cell in json.loads(lmk("grid", file, "-o", done, "--json").out):
        length = next(str(value) for axis, value in cell.items() if axis.startswith("max"))
        cost = (cell["collection"], cell["ms per document"], cell["stored"])
        costs.setdefault((cell["pool"], length), set()).add(cost)
        assert cell["peak memory"] > 0
    for row, of_cells in costs.items():  # a cell has the cost of its own collection
        (_, first, big), (_, second, small) = sorted(of_cells, key=lambda cost: -cost[2])
        assert abs((first + second) / 2 - shown[row]) < 1e-3
        assert big > small > 0  # 60 and 40 documents


def test_the_log_of_the_results_is_a_score_log_like_any(lmk: Lmk, file: Path, done: Path) -> None:
    entries = scorelog.read(done / "scores.jsonl")
    assert len(entries) == 8
    assert {scorelog.setting(each, "max-length") for each in entries} == {32, 128}
    assert "tokens" in {step["kind"] for step in entries[0]["lineage"]}
    assert lmk("repro", f"{done}/scores.jsonl#1", "--json").json[-1]["same"]


def test_one_cell_can_be_run_alone(lmk: Lmk, file: Path, tmp_path: Path) -> None:
    rows = lmk("grid", file, "-o", tmp_path / "r", "--only", "*other_lmk_16_32", "--json").json
    assert [row["measure"] for row in rows] == ["nDCG@10", "R@5"]
    assert "no cell is named x" in lmk("grid", file, "-o", tmp_path, "--only", "x", code=2).err


def test_a_failed_cell_is_named_and_the_others_finish(
    lmk: Lmk, file: Path, beir: Path, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "corpus.jsonl").write_text('{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n')
    grid = tmp_path / "grid.toml"
    text = FILE.format(collections=json.dumps([str(beir), str(bad)]), model=tiny_model("bert"))
    grid.write_text(text.replace('["mean", "lmk"]', '"mean"').replace("[32, 128]", "32"))
    failed = lmk("grid", grid, "-o", tmp_path / "r", "-f", "csv", code=4)
    assert "1 of 2 cells failed" in failed.err
    assert "lmk encode (encode-" in failed.err
    assert len(failed.out.splitlines()) == 3  # a head and two measures of the other cell


def test_results_are_shown_drawn_and_reported(
    lmk: Lmk, file: Path, done: Path, tmp_path: Path
) -> None:
    state = lmk("show", done).out
    assert state.count(" done") == 8
    (name,) = [line.split()[0] for line in state.splitlines() if "other_lmk_16_32 " in line]
    cell = lmk("show", done, name, "--json").json
    assert [step["key"].partition("-")[0] for step in cell["steps"]] == [
        *("tokenize", "encode", "search", "eval"),
    ]
    assert all(step["done"] and step["seconds"] is not None for step in cell["steps"])
    assert set(cell["scores"]) == {"nDCG@10", "R@5"}
    lmk("plot", done, "--x", "max-length", "--by", "pool", "-o", tmp_path / "curve.svg")
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    words = ["plot", done, "--x", "max-length", "--by", "pool", "--panels", "collection"]
    lmk(*words, "-m", "nDCG@10", "-o", tmp_path / "panels.svg")
    drawn = (tmp_path / "panels.svg").read_text()
    assert len(re.findall(r'id="axes_\d+"', drawn)) == 2  # a panel for each collection
    report = (done / "report.html").read_text()
    assert report.count("<details>") == 8
    assert name in report
    for outside in ("src=", "href=", "url(", "@import", "fetch("):
        assert outside not in report
    ends = [float(x) for x in re.findall(r'text-anchor="(?:start|end)">([-\d.]+)<', report)]
    assert ends  # the labels of the axes of scores
    assert all(0 <= end <= 1 for end in ends)
    assert "lmk · gran 16 · max-length 32" in report  # without the settings of all cells
