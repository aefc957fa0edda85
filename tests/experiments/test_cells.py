"""Cells: products, narrowings, names."""

from lmkcli.experiments.cells import cells
from lmkcli.experiments.gridfile import GridFile, Narrowing

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


def test_conditions_may_have_stars_and_later_narrowings_see_earlier_ones() -> None:
    first = Narrowing({"collection": "b/*"}, {"k": [("5",), ("7",)]})
    found = cells(GridFile(AXES, [first, Narrowing({"k": "7"}, {"gran": [("128",)]})]))
    of_b = [(each.shown("k"), each.shown("gran")) for each in found if each.name.startswith("b")]
    assert of_b == [("5", "32"), ("7", "128"), ("5", "64")] * 2
    assert {each.shown("k") for each in found if each.name.startswith("a")} == {"10"}


def test_a_narrowing_to_nothing_drops_its_cells() -> None:
    found = cells(GridFile(AXES, [Narrowing({"model": "cls/"}, {"gran": []})]))
    assert {each.values["model"] for each in found} == {("lmk/",)}


def test_names_that_would_be_the_same_are_told_apart() -> None:
    axes = {"collection": [("a",)], "doc-prompt": [("x: ",), ("x ",)]}
    names = [each.name for each in cells(GridFile(axes))]
    assert len(set(names)) == 2
    assert all(name.startswith("a_x_") for name in names)
    axes["offline"] = [("true",)]  # what does not differ is in no name
    assert [each.name for each in cells(GridFile(axes))] == names
