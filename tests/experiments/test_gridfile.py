"""Grid files: what is read of them, and what is refused by name."""

from pathlib import Path

import pytest

from lmkcli.errors import DataError, UsageError
from lmkcli.experiments import gridfile


def read(tmp_path: Path, text: str) -> gridfile.GridFile:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return gridfile.read(path)


def test_single_values_and_lists_are_axes_and_what_takes_a_list_takes_it_whole(
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
    assert len(collections) == 14  # the group's members
    assert grid.axes == {
        "model": [("m/",)],
        "gran": [(), ("32",)],
        "normalize": [("true",), ("false",)],
        "measures": [("nDCG@10", "R@100")],
        "train.pool": [("cls",), ("lmk",)],
        "train.examples": [("x.jsonl", "y.jsonl")],
    }


def test_what_is_left_empty_or_has_one_value_is_read_as_such(tmp_path: Path) -> None:
    grid = read(tmp_path, "[grid]\ncollections=['']\nmeasures=[]\n[table]\nrows='measures'")
    assert grid.axes == {"collection": [], "measures": [("nDCG@10",)]}
    assert grid.table.rows == ("measures",)


def test_single_values_of_a_where_are_conditions_and_lists_are_what_holds(tmp_path: Path) -> None:
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
    assert grid.axes["gran"] == [()]  # an axis that a narrowing alone names


def test_a_flag_of_several_commands_belongs_to_the_first_of_the_chain() -> None:
    def owner(axis: str) -> tuple[str, str]:
        verb, option = gridfile.owner(axis)
        return verb, option.name

    assert owner("pool") == ("encode", "pool")
    assert owner("loss") == ("train", "loss")
    assert owner("train.pool") == ("train", "pool")
    assert owner("hits") == owner("k") == ("search", "k")


@pytest.mark.parametrize(
    "key", ["output", "if-exists", "shard", "rerank", "vectors", "per-query", "tag", "measure"]
)
def test_what_the_grid_sets_is_no_axis(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match=f"{key} is what the grid itself sets"):
        read(tmp_path, f"[grid]\n{key} = 'x'\ncollections='a'")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[grid]\npoool = 'cls'\ncollections='a'", "no flag poool (did you mean pool?)"),
        ("[grid]\nencod.pool = 'cls'\ncollections='a'", "no command encod (did you mean encode?)"),
        ("[grid]\noutput = 'x'\ncollections='a'", "output is what the grid itself sets"),
        ("[grid]\npool = 'cls'", "names no collections"),
        ("[gird]\npool = 'cls'", "no table [grid]"),
        ("[grid]\ncollections='a'\n[[grid.where]]\npool='cls'", "has no list"),
        ("[grid]\ncollections='a'\n[[grid.where]]\npool=['cls']", "has no single value"),
        ("[grid]\ncollections='a'\n[table]\nrows=['pol']", "no axis pol"),
        ("[grid]\ncollections='a'\n[table]\nlines=['pool']", "not lines"),
        ("table=3\n[grid]\ncollections='a'", "[table] is a table"),
        ("[grid]\ncollections='a'\n[table]\nbaseline=3", "baseline is a table"),
        ("[grid]\ncollections='a'\n[table.baseline]\nbenchmark='b'", "no axis benchmark"),
        ("[grid]\ncollections='a'\nwhere=3", "write [[grid.where]]"),
        ("[grid]\ncollections='a'\n[grid.where]\npool='cls'", "write [[grid.where]]"),
        (
            "[grid]\ncollections='a'\n[slurm.encde]\ntime='1'",
            "no step encde (did you mean encode?)",
        ),
    ],
)
def test_what_is_no_grid_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)


def test_what_is_no_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not TOML"):
        read(tmp_path, "[grid\n")
