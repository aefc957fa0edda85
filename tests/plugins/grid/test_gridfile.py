"""Grid files: axes, errors that name the keys, and cells."""

from pathlib import Path

import pytest

from lmkcli.errors import DataError, UsageError
from lmkcli.plugins.grid import gridfile
from lmkcli.plugins.grid.gridfile import GridFile, Narrowing, cells


def read(tmp_path: Path, text: str) -> gridfile.GridFile:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return gridfile.read(path)


def test_single_values_and_lists_are_axes_and_some_axes_take_lists(
    tmp_path: Path,
) -> None:
    grid = read(
        tmp_path,
        """
        [grid]
        model = "m/"
        gran = ["", 32]
        normalize = [true, false]
        collections = ["a", "nano-beir"]
        measures = ["nDCG@10", "R@100"]
        train.pool = ["cls", "lmk"]
        train.examples = ["x.jsonl", "y.jsonl"]
        """,
    )
    collections = grid.axes.pop("collection")
    assert collections[:2] == [("a",), ("nano-beir/arguana",)]
    assert len(collections) == 14  # the members of the group
    assert grid.axes == {
        "model": [("m/",)],
        "gran": [(), ("32",)],
        "normalize": [("true",), ("false",)],
        "measures": [("nDCG@10", "R@100")],
        "train.pool": [("cls",), ("lmk",)],
        "train.examples": [("x.jsonl", "y.jsonl")],
    }


def test_empty_lists_and_single_values(tmp_path: Path) -> None:
    grid = read(tmp_path, "[grid]\ncollections=['']\nmeasures=[]\n[table]\nrows='measures'")
    assert grid.axes == {"collection": [], "measures": [("nDCG@10",)]}
    assert grid.table.rows == ("measures",)


def test_single_values_of_a_where_are_conditions_and_lists_are_values(tmp_path: Path) -> None:
    grid = read(
        tmp_path,
        """
        [grid]
        collections = "a"
        [[grid.where]]
        model = "m/"
        gran = [""]
        measures = ["RR@10"]
        """,
    )
    (narrowing,) = grid.narrowings
    assert narrowing.matching == {"model": "m/"}
    assert narrowing.values == {"gran": [()], "measures": [("RR@10",)]}
    assert grid.axes["gran"] == [()]  # an axis that only a narrowing names


def test_a_flag_of_several_commands_belongs_to_the_first_of_the_chain() -> None:
    def owner(axis: str) -> tuple[str, str]:
        verb, option = gridfile.owner(axis)
        return verb, option.name

    assert owner("pool") == ("encode", "pool")
    assert owner("loss") == ("train", "loss")
    assert owner("train.pool") == ("train", "pool")
    assert owner("hits") == owner("k") == ("search", "k")


@pytest.mark.parametrize(
    "key", ["output", "if-exists", "shard", "vectors", "per-query", "tag", "measure"]
)
def test_settings_of_the_grid_are_no_axes(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match=f"{key} .*the grid"):
        read(tmp_path, f"[grid]\n{key} = 'x'\ncollections='a'")


@pytest.mark.parametrize("key", ["rerank", "search.rerank", "with", "search.others"])
def test_only_the_vectors_of_the_cell_rerank(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match=f'{key} = .*"vectors"'):
        read(tmp_path, f"[grid]\n{key} = 'other/'\ncollections='a'")
    given = read(tmp_path, f"[grid]\n{key} = ['', 'vectors']\ncollections='a'")
    assert given.axes[key] == [(), ("vectors",)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[grid]\npoool = 'cls'\ncollections='a'", r"flag poool .*\bpool\?"),
        ("[grid]\nencod.pool = 'cls'\ncollections='a'", r"command encod .*\bencode\?"),
        ("[grid]\noutput = 'x'\ncollections='a'", r"grid\.toml: output .*the grid"),
        ("[grid]\npool = 'cls'", r"\[grid\] .*collections = "),
        ("[gird]\npool = 'cls'", r"no table \[grid\]"),
        ("[grid]\ncollections='a'\n[[grid.where]]\npool='cls'", r"\[\[grid\.where\]\] .*no list"),
        (
            "[grid]\ncollections='a'\n[[grid.where]]\npool=['cls']",
            r"\[\[grid\.where\]\] .*no single value",
        ),
        ("[grid]\ncollections='a'\n[table]\nrows=['pol']", "axis pol; .*collection, measures"),
        (
            "[grid]\ncollections='a'\n[table]\nlines=['pool']",
            "rows, columns, baseline and means, .*lines",
        ),
        ("table=3\n[grid]\ncollections='a'", r"\[table\] is .*rows, columns, baseline and means"),
        ("[grid]\ncollections='a'\n[table]\nbaseline=3", r"baseline .*table.*\{ pool = "),
        (
            "[grid]\ncollections='a'\n[table.baseline]\nbenchmark='b'",
            "axis benchmark; .*collection, measures",
        ),
        ("[grid]\ncollections='a'\nwhere=3", r"\[\[grid\.where\]\], .*brackets"),
        ("[grid]\ncollections='a'\n[grid.where]\npool='cls'", r"\[\[grid\.where\]\], .*brackets"),
        (
            "[grid]\ncollections='a'\n[slurm.encde]\ntime='1'",
            r"step encde .*\bencode\?.*\[slurm\.encde\]",
        ),
    ],
)
def test_errors_name_the_wrong_keys(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(tmp_path, text)


def test_many_wrong_keys_are_refused_fast(tmp_path: Path) -> None:
    keys = "".join(f"pool{number} = 1\n" for number in range(50_000))
    with pytest.raises(UsageError) as caught:
        read(tmp_path, f"[grid]\n{keys}collections='a'")
    assert str(caught.value).count("there is no flag") == 10


@pytest.mark.parametrize(
    "text",
    [
        "[grid" + ".a" * 3000 + "]\nb = 1",
        "[grid]\n" + "a." * 200_000 + "a = 1",
        "[grid]\n" + '"a" . ' * 1000 + "'a' = 1",
        "[grid]\na = " + "[" * 100_000,
        "[grid]\na = " + "{a=" * 100_000,
        "[grid]\na = " + "9" * 5000,
    ],
)
def test_deep_and_long_values_are_refused_fast(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="is not TOML"):
        read(tmp_path, text)


def test_words_and_texts_with_many_dots_are_no_deep_keys(tmp_path: Path) -> None:
    text = f"[grid]\ncollections = ['{'a' * 500_000}', 'a.b', \"{'one. two. ' * 20}\"]\n"
    assert len(read(tmp_path, text).axes["collection"]) == 3


def test_too_many_cells_are_refused_before_they_are_made(tmp_path: Path) -> None:
    axes = [f"{name} = {list(range(1, 100))}" for name in ("k", "gran", "max-length", "batch-size")]
    grid = read(tmp_path, "\n".join(["[grid]", "collections = 'a'", *axes]))
    with pytest.raises(UsageError, match="more than 100,000 combinations"):
        cells(grid)
    narrowing = Narrowing({"collection": "a"}, {"k": [(str(n),) for n in range(500)]})
    narrow = GridFile({"collection": [("a",)], "gran": [(str(n),) for n in range(500)], "k": [()]})
    with pytest.raises(UsageError, match="combinations"):
        cells(GridFile(narrow.axes, [narrowing]))


@pytest.mark.parametrize("shards", ["0", "-1", "true", "1.5", "100000", "1" + "0" * 30, "'2'"])
def test_numbers_of_shards_that_cannot_be(tmp_path: Path, shards: str) -> None:
    with pytest.raises(UsageError, match=r"shards.* 1 .*99999"):
        read(tmp_path, f"[grid]\ncollections='a'\n[slurm.encode]\nshards = {shards}")


def test_files_that_are_not_toml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not TOML"):
        read(tmp_path, "[grid\n")


AXES = {
    "collection": [("a",), ("b/c",)],
    "model": [("cls/",), ("lmk/",)],
    "gran": [("32",), ("64",)],
    "k": [("10",)],
}


def test_cells_are_the_product_of_the_axes_named_by_what_differs() -> None:
    found = cells(GridFile(AXES))
    assert len(found) == 8
    assert [each.name for each in found[:3]] == ["a_cls_32", "a_cls_64", "a_lmk_32"]
    assert found[-1].name == "b-c_lmk_64"
    assert found[0].values == {
        "collection": ("a",),
        "model": ("cls/",),
        "gran": ("32",),
        "k": ("10",),
    }


def test_a_narrowing_replaces_the_values_of_the_cells_that_it_matches() -> None:
    found = cells(GridFile(AXES, [Narrowing({"model": "cls/"}, {"gran": [()]})]))
    assert [each.name for each in found] == [
        *("a_cls", "a_lmk_32", "a_lmk_64"),
        *("b-c_cls", "b-c_lmk_32", "b-c_lmk_64"),
    ]


def test_conditions_have_wildcards_and_apply_to_earlier_narrowings() -> None:
    first = Narrowing({"collection": "b/*"}, {"k": [("5",), ("7",)]})
    found = cells(GridFile(AXES, [first, Narrowing({"k": "7"}, {"gran": [("128",)]})]))
    of_b = [(each.shown("k"), each.shown("gran")) for each in found if each.name.startswith("b")]
    assert of_b == [("5", "32"), ("7", "128"), ("5", "64")] * 2
    assert {each.shown("k") for each in found if each.name.startswith("a")} == {"10"}


def test_a_narrowing_to_nothing_drops_its_cells() -> None:
    found = cells(GridFile(AXES, [Narrowing({"model": "cls/"}, {"gran": []})]))
    assert {each.values["model"] for each in found} == {("lmk/",)}


def test_the_name_of_a_local_collection_has_no_dot() -> None:
    grid = GridFile({"collection": [("./cranfield",)], "gran": [("16",), ("32",)]})
    assert [each.name for each in cells(grid)] == ["cranfield_16", "cranfield_32"]


def test_equal_names_get_a_digest() -> None:
    axes = {"collection": [("a",)], "doc-prompt": [("x: ",), ("x ",)]}
    names = [each.name for each in cells(GridFile(axes))]
    assert len(set(names)) == 2
    assert all(name.startswith("a_x_") for name in names)
    axes["offline"] = [("true",)]  # an axis with one value is in no name
    assert [each.name for each in cells(GridFile(axes))] == names
