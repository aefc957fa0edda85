"""Manifests: written once, compared by identity and execution, read with care."""

import errno
import json
import os
import time
from dataclasses import replace as other_side
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import (
    FORMAT,
    Manifest,
    TokensManifest,
    VectorsManifest,
    plain,
)
from lmkcli.artifact.manifest import (
    NAME,
    as_text,
    claim,
    digest,
    environment,
    fingerprint,
    json_differences,
    read,
)
from lmkcli.errors import DataError, Mismatch
from lmkcli.spec.recipe import Recipe
from tests import manifests
from tests.cluster import waited
from tests.forkserver import ForkServer

MADE = manifests.vectors(text={"fields": "titel é \ud800"}, shards=16)
SIDE = other_side(manifests.SIDE, pool="mean", gran="")
OTHER = Recipe(SIDE, SIDE)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def written(made: Manifest) -> Manifest:
    """The same manifest with its digest."""
    return replace(made, digest=read_text(as_text(made))["digest"])


def read_text(text: str) -> dict[str, Any]:
    """The values of a manifest file."""
    return dict(json.loads(text))


@pytest.mark.parametrize("kind", manifests.KINDS)
def test_a_claimed_folder_is_read_back(tmp_path: Path, kind: str) -> None:
    made = manifests.KINDS[kind]()
    assert claim(tmp_path / "a/b", made) == written(made)
    assert read(tmp_path / "a/b") == read(tmp_path / "a/b", type(made)) == written(made)
    assert read_text((tmp_path / "a/b" / NAME).read_text())["kind"] == made.kind == kind
    manifest.check_unchanged(tmp_path / "a/b", read(tmp_path / "a/b"))
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == [NAME]


def test_facts_are_those_of_the_first_and_not_compared(tmp_path: Path) -> None:
    claim(tmp_path, MADE)
    before = (tmp_path / NAME).read_bytes()
    later = replace(MADE.facts, time="later")
    assert claim(tmp_path, replace(MADE, facts=later)) == written(MADE)
    assert (tmp_path / NAME).read_bytes() == before


def claim_at_once(folder: str, number: int, gate: str) -> None:
    """Claim a folder once the file `gate` exists; print whose manifest it has."""
    Path(f"{gate}-{number}").touch()
    while not Path(gate).exists():
        time.sleep(0.001)
    facts = replace(MADE.facts, operation={"writer": number})
    print(claim(Path(folder), replace(MADE, facts=facts)).facts.operation["writer"])


def test_of_sixteen_processes_one_writes(tmp_path: Path, light_forkserver: ForkServer) -> None:
    gate, made = tmp_path / "gate", tmp_path / "made"
    with open(tmp_path / "out", "a+") as out, open(tmp_path / "err", "a+") as err:
        tasks = [
            light_forkserver.call(
                f"{__name__}:claim_at_once", str(made), number, str(gate), streams=(out, err)
            )
            for number in range(16)
        ]
        errors = (tmp_path / "err").read_text
        waited("all processes", lambda: len(list(tmp_path.glob("gate-*"))) == 16, errors)
        gate.touch()
        assert [task.wait() for task in tasks] == [0] * 16, errors()
    writers = (tmp_path / "out").read_text().split()
    assert len(writers) == 16
    assert len(set(writers)) == 1
    assert [path.name for path in made.iterdir()] == [NAME]


@pytest.mark.parametrize(
    ("other", "lines"),
    [
        (
            manifests.vectors(OTHER, text=MADE.identity.text, shards=16),
            ["another identity", "recipe.doc.gran: '64' | ''", "recipe.doc.pool: 'lmk' | 'mean'"],
        ),
        (
            replace(MADE, execution=replace(MADE.execution, shards=4)),
            ["another execution", "shards: 16 | 4"],
        ),
        (manifests.tokens(16), ["kind: vectors | tokens"]),
    ],
)  # fmt: skip
def test_another_artifact_is_refused_with_both_sides(
    tmp_path: Path, other: Manifest, lines: list[str]
) -> None:
    claim(tmp_path, MADE)
    with pytest.raises(Mismatch) as caught:
        claim(tmp_path, other)
    for line in [*lines, str(tmp_path), "--if-exists overwrite"]:
        assert line in str(caught.value)
    assert read(tmp_path) == written(MADE)


def test_a_manifest_of_a_newer_lmk_is_refused(tmp_path: Path) -> None:
    newer = {**plain(MADE), "format": FORMAT + 1}
    for data in (newer, {**newer, "lineage": "a field of the future"}):
        (tmp_path / NAME).write_text(json.dumps(data))
        with pytest.raises(DataError, match="newer lmk"):
            read(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "{}", '{"kind": "v", "odd": 1}', "\udcff"])
def test_a_broken_manifest_is_a_data_error(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path)


def test_what_is_no_artifact_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(DataError, match="is not an lmk artifact"):
            read(path)


def test_the_kind_is_checked_where_one_is_needed(tmp_path: Path) -> None:
    claim(tmp_path, MADE)
    with pytest.raises(DataError, match=r"vectors; .*tokens"):
        read(tmp_path, TokensManifest)


@pytest.mark.parametrize(
    ("kind", "shown"), [("", "kind ''"), ("a\nb", r"kind 'a\nb'"), ("recipe", "kind 'recipe'")]
)
def test_an_unknown_kind_is_named(tmp_path: Path, kind: str, shown: str) -> None:
    (tmp_path / NAME).write_text(json.dumps({**plain(MADE), "kind": kind}))
    for kinds in ([], [VectorsManifest]):
        with pytest.raises(DataError) as error:
            read(tmp_path, *kinds)
        assert shown in str(error.value)


def test_the_fingerprint_is_of_kind_and_identity() -> None:
    text = MADE.identity.text
    moved = replace(MADE.facts, time="later")
    same = replace(manifests.vectors(text=text, shards=2), facts=moved)
    assert fingerprint(same) == fingerprint(MADE)
    others = [manifests.vectors(OTHER, text=text), manifests.vectors(), manifests.tokens()]
    assert len({fingerprint(other) for other in others} | {fingerprint(MADE)}) == 4


@given(JSON)
def test_a_digest_survives_json_and_the_order_of_keys(value: Any) -> None:
    again = json.loads(json.dumps(value))
    assert digest(again) == digest(value)
    assert digest({"b": value, "a": 1}) == digest({"a": 1, "b": value})
    assert digest([value]) != digest([[value]])


NESTED = st.recursive(
    st.integers(0, 2), lambda inner: st.dictionaries(st.sampled_from("ab"), inner), max_leaves=5
)


@given(NESTED, NESTED)
def test_values_differ_exactly_when_there_is_a_line(here: Any, there: Any) -> None:
    assert bool(json_differences(here, there)) == (here != there)
    assert len(json_differences(here, there)) == len(json_differences(there, here))


def test_differences_name_the_leaf() -> None:
    here = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert json_differences(here, {"a": {"b": 1, "c": [2]}}) == ["a.c: [1] | [2]", "d: 2 | None"]


def test_the_environment_is_json_and_names_what_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMK_ENCODE_DTYPE", "fp32")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("HOME_ADDRESS", "private")
    made = environment()
    assert json.loads(json.dumps(made)) == made
    keys = {"lmk", "python", "packages", "machine", "time", "command", "directory", "operation"}
    assert keys | {"environment"} == made.keys()
    assert made["packages"]["numpy"]
    assert all(value == version(name) for name, value in made["packages"].items())
    assert made["environment"]["LMK_ENCODE_DTYPE"] == "fp32"
    assert "HOME_ADDRESS" not in made["environment"]


def test_a_folder_of_artifacts_names_them(tmp_path: Path) -> None:
    for name in ("beir-nq", "beir-quora"):
        claim(tmp_path / name, MADE)
    with pytest.raises(DataError, match="beir-nq, beir-quora"):
        read(tmp_path)


def test_a_claim_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "new", tmp_path / "mine"):
        with pytest.raises(OSError, match="too large"):
            manifest.claim(folder, manifests.tokens())
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert not list((tmp_path / "mine").iterdir())


def changed(made: Manifest, path: str, value: Any) -> dict[str, Any]:
    """The values of a manifest with another value, or without it for the value `...`."""
    values: dict[str, Any] = plain(written(made))
    *above, name = path.split(".")
    inner = values
    for key in above:
        inner = inner[key]
    inner[name] = value
    if value is ...:
        del inner[name]
    return values


@pytest.mark.parametrize(
    ("kind", "path", "value", "reason"),
    [
        ("vectors", "identity.dim", 0, "identity.dim: "),
        ("vectors", "identity.recipe.doc.weights", ..., "identity.recipe.doc.weights is missing"),
        ("vectors", "identity.recipe.doc.pol", "cls", "identity.recipe.doc.pol is unknown"),
        ("vectors", "identity.recipe.doc.gran", "x", "identity.recipe.doc.gran: "),
        ("vectors", "execution.shards", 100_000, "execution.shards: "),
        ("vectors", "execution.store_dtype", "fp8", "execution: store_dtype 'fp8'"),
        ("vectors", "facts.models", ..., "facts.models is missing"),
        ("tokens", "identity.pool", "cls", "identity.pool is unknown"),
        ("tokens", "execution.source.stamp", {"a": ["1"]}, "execution.source.stamp"),
        ("index", "identity.settings", [], "identity.settings: "),
        ("index", "identity.collection", ..., "identity: it needs either"),
        ("index", "facts.vectors", "../v", "facts.vectors: "),
        ("run", "identity.k", "10", "identity.k: "),
        ("run", "identity.search", {"rerank": 3}, "identity: search.rerank: "),
        ("model", "identity.settings", {}, "identity: settings.steps is missing"),
        ("shards", "execution.pieces", "0.npz", "execution.pieces: "),
        ("export", "facts.from", ..., "facts.from is missing"),
        ("export", "files", {"a": [1]}, "files"),
        ("export", "lineage", "of the future", "lineage is unknown"),
        ("run", "facts.machine.memory", -1, "facts.machine.memory: "),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(
    tmp_path: Path, kind: str, path: str, value: Any, reason: str
) -> None:
    (tmp_path / NAME).write_text(json.dumps(changed(manifests.KINDS[kind](), path, value)))
    with pytest.raises(DataError) as error:
        read(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / NAME} cannot be read ({reason}")


@pytest.mark.parametrize("path", ["identity.dim", "execution.shards", "identity.recipe.doc.pool"])
def test_an_edited_manifest_is_recognised(tmp_path: Path, path: str) -> None:
    value = "cls" if path.endswith("pool") else 7
    (tmp_path / NAME).write_text(json.dumps(changed(MADE, path, value)))
    with pytest.raises(DataError, match="has changed since it was written"):
        manifest.check_unchanged(tmp_path, read(tmp_path))
    (tmp_path / NAME).write_text(json.dumps(changed(MADE, "facts.time", "later")))
    manifest.check_unchanged(tmp_path, read(tmp_path))


def test_files_are_added_to_the_list_before_they_arrive(tmp_path: Path) -> None:
    claim(tmp_path, manifests.model())
    (tmp_path / "growing").write_text("weights")
    manifest.record_files(tmp_path, {"model.safetensors": tmp_path / "growing"})
    made = read(tmp_path)
    assert made.files == {"model.safetensors": manifest.written(tmp_path / "growing")}
    manifest.check_unchanged(tmp_path, made)
    assert claim(tmp_path, manifests.model()) == made
