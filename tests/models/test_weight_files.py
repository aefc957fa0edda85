"""Which files make a model: all of them are in the digest and in exports, and none is out of the folder."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lmkcli import RecipeOptions, load_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import DataError
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.transformer import open_model
from lmkcli.models.weight_files import weight_files
from tests import levels, tiny

Models = Callable[[str], Path]
Lmk = Callable[..., Any]
ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
WEIGHTS = (".safetensors", ".bin")


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def divide(folder: Path, *names: str, index: str = INDEX) -> None:
    """Divide the weights of a folder among files, and write their index."""
    state = load_file(folder / ONE)
    (folder / ONE).unlink()
    places = {tensor: names[number % len(names)] for number, tensor in enumerate(sorted(state))}
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        mine = {tensor: state[tensor].clone() for tensor, place in places.items() if place == name}
        if name.endswith(".bin"):
            torch.save(mine, folder / name)
        else:
            save_file(mine, folder / name, metadata={"format": "pt"})
    put(folder / index, {"metadata": {}, "weight_map": places})


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / ONE), folder / "pytorch_model.bin")
    (folder / ONE).unlink()


def shuffled(folder: Path) -> None:
    """Weights under names that a digest of the usual names does not contain, next to others."""
    divide(folder, "a.safetensors", "deep/down/b.safetensors")
    shutil.copyfile(folder / "a.safetensors", folder / "other.safetensors")


def dense(folder: Path) -> None:
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    put(
        folder / "modules.json",
        [
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, (path, kind) in enumerate(modules)
        ],
    )
    put(folder / "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
    put(folder / "2_Dense/config.json", {"in_features": tiny.WIDTH, "out_features": 8})
    weights = {"linear.weight": torch.randn(8, tiny.WIDTH), "linear.bias": torch.randn(8)}
    save_file(weights, folder / "2_Dense" / ONE)


def adapter(folder: Path) -> None:
    """An adapter of a base with weights in a subfolder."""
    base = folder.with_name("base")
    shutil.copytree(folder, base)
    divide(base, "sub/a.safetensors", "b.safetensors")
    shutil.rmtree(folder)
    folder.mkdir()
    layer = "base_model.model.encoder.layer.0.attention.self.query"
    a, b = torch.randn(2, tiny.WIDTH), torch.randn(tiny.WIDTH, 2)
    matrices = {f"{layer}.lora_A.weight": a, f"{layer}.lora_B.weight": b}
    save_file(matrices, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(base)}
    put(folder / "adapter_config.json", config)


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "one file": lambda folder: None,
    "shards": lambda folder: divide(folder, "model-1.safetensors", "model-2.safetensors"),
    "subfolder": lambda folder: divide(folder, "weights/a.safetensors", "weights/b.safetensors"),
    "some in a subfolder": lambda folder: divide(folder, "a.safetensors", "x/y/b.safetensors"),
    "unused shard": shuffled,
    "pickled": pickled,
    "pickled shards": lambda folder: divide(
        folder, "sub/1.bin", "2.bin", index="pytorch_model.bin.index.json"
    ),
    "dense": dense,
    "adapter": adapter,
}


@pytest.fixture
def layout(
    tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(name: str) -> Path:
        folder = shutil.copytree(tiny_model("bert"), tmp_path / "made" / "model")
        LAYOUTS[name](folder)
        return folder

    return make


def identity(folder: Path) -> Any:
    return resolve(RecipeOptions(model=str(folder), pool="mean")).recipe.identity()


def vectors(folder: Path) -> Any:
    encoder = load_encoder(str(folder), RecipeOptions(pool="mean"))
    return np.array(encoder.encode_documents([tiny.TEXTS[3], tiny.TEXTS[8]]).vectors)


def changed(data: bytes, places: list[int]) -> bytes:
    other = bytearray(data)
    for at in places:
        other[at] ^= 1
    return bytes(other)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_byte_that_changes_the_vectors_changes_the_identity(
    layout: Callable[[str], Path], name: str
) -> None:
    """Time and size of a file do not change, as after `rsync -t`; lmk may refuse the file instead."""
    folder = layout(name)
    before, expected = identity(folder), vectors(folder)
    rng = levels.rng(f"bytes of {name}")
    noticed = 0  # weights: changed vectors, or a refusal, because pickled files have checksums
    for file in sorted(path for path in folder.parent.rglob("*") if path.is_file()):
        data, times = file.read_bytes(), file.stat()
        low, middle, high = len(data) // 2, 3 * len(data) // 4, len(data)
        one = [[rng.randrange(low, high)] for _ in range(2)]
        many = [list(range(low, middle, 101))] if len(data) > 4096 else []
        for places in one + many:
            file.write_bytes(changed(data, places))
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            try:
                after, now = identity(folder), vectors(folder)
            except DataError:
                noticed += file.suffix in WEIGHTS
                continue
            finally:
                file.write_bytes(data)
                os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            same = now.shape == expected.shape and np.array_equal(now, expected)
            noticed += not same and file.suffix in WEIGHTS
            assert same or after != before, f"{file} changes the vectors"
    assert noticed


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "adapter"])
def test_the_index_chooses_weights_that_are_in_the_digest(
    layout: Callable[[str], Path], name: str
) -> None:
    """Every file of weights counts: none can be replaced by another file without a new digest."""
    folder = layout(name)
    before = read_model(str(folder)).weights_digest
    for file in weight_files(folder):
        data = file.read_bytes()
        file.write_bytes(data + b"x")
        assert read_model(str(folder)).weights_digest != before
        file.write_bytes(data)


def test_another_choice_of_an_index_is_another_model(layout: Callable[[str], Path]) -> None:
    folder = layout("unused shard")
    before = read_model(str(folder)).weights_digest
    index = json.loads((folder / INDEX).read_text())
    places = {
        k: v.replace("a.safetensors", "other.safetensors") for k, v in index["weight_map"].items()
    }
    put(folder / INDEX, index | {"weight_map": places})
    assert read_model(str(folder)).weights_digest != before


def test_digests_of_usual_folders_do_not_contain_the_index(layout: Callable[[str], Path]) -> None:
    folder = layout("shards")
    before = read_model(str(folder)).weights_digest
    index = json.loads((folder / INDEX).read_text())
    put(folder / INDEX, index | {"metadata": {"total_size": 3}})
    assert read_model(str(folder)).weights_digest == before


@pytest.mark.parametrize(
    "name", ["subfolder", "some in a subfolder", "pickled shards", "unused shard"]
)
def test_an_export_contains_all_weights(
    lmk: Lmk, layout: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    folder = layout(name)
    expected = vectors(folder)
    out = tmp_path / "exported"
    lmk("export", "--to", "sentence-transformers", "-m", folder, "--pool", "mean", "-o", out)
    shutil.rmtree(folder)
    assert np.allclose(vectors(out), expected, atol=1e-6)
    lmk(
        "export",
        "--to",
        "sentence-transformers",
        "-m",
        out,
        "--pool",
        "mean",
        "-o",
        tmp_path / "again",
    )


@pytest.mark.parametrize(
    "name",
    [
        "../b.safetensors",
        "/dev/zero",
        "/tmp/b.safetensors",
        "x/../../b.safetensors",
        "b.txt",
        "a\0b",
        "",
    ],
)
@pytest.mark.parametrize("index", [INDEX, "pytorch_model.bin.index.json"])
def test_an_index_names_only_weights_in_its_folder(
    layout: Callable[[str], Path], name: str, index: str
) -> None:
    folder = layout("one file")
    save_file(load_file(folder / ONE), folder.parent / "b.safetensors")
    (folder / ONE).unlink()
    put(folder / index, {"metadata": {}, "weight_map": {"a": name}})
    for use in (
        lambda one: one.weights_digest,
        lambda one: open_model(one, ModelOptions("fp32", "cpu")),
    ):
        with pytest.raises(DataError, match=index):
            use(read_model(str(folder)))


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.write((1000).to_bytes(8, "little") + b"{}")
        file.truncate(1 << 42)


def hole(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "sparse": (sparse, "is a sparse file"),
    "hole": (hole, "sparse file"),
    "pipe": (os.mkfifo, "is a pipe"),
    "zero": (lambda path: path.symlink_to("/dev/zero"), "is a device"),
    "folder": (Path.mkdir, "is a folder"),
    "missing": (lambda path: None, "a.safetensors is missing; download the model again"),
    "dangling": (lambda path: path.symlink_to("nowhere"), "missing file"),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("place", ["a.safetensors", "sub/a.safetensors"])
def test_endless_weights_are_refused_before_a_byte_is_read(
    layout: Callable[[str], Path], kind: str, place: str
) -> None:
    folder = layout("one file")
    (folder / ONE).unlink()
    (folder / place).parent.mkdir(exist_ok=True)
    make, message = SPECIAL[kind]
    make(folder / place)
    put(folder / INDEX, {"metadata": {}, "weight_map": {"a": place}})
    for use in (
        lambda one: one.weights_digest,
        lambda one: open_model(one, ModelOptions("fp32", "cpu")),
    ):
        with pytest.raises(DataError, match=message):
            use(read_model(str(folder)))


def test_a_sparse_file_next_to_the_weights_is_refused(layout: Callable[[str], Path]) -> None:
    folder = layout("one file")
    sparse(folder / "extra.safetensors")
    with pytest.raises(DataError, match="is a sparse file"):
        read_model(str(folder))


def test_a_header_of_a_million_tensors_is_refused_before_it_is_parsed(
    layout: Callable[[str], Path],
) -> None:
    folder = layout("one file")
    entry = '"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    header = "{" + ",".join(entry.format(number) for number in range(400_000)) + "}"
    (folder / ONE).write_bytes(len(header).to_bytes(8, "little") + header.encode())
    with pytest.raises(DataError, match="too many tensors"):
        open_model(read_model(str(folder)), ModelOptions("fp32", "cpu"))


def test_a_distributed_checkpoint_is_refused(layout: Callable[[str], Path]) -> None:
    """transformers prefers it to the other weights, and reads all of its files."""
    folder = layout("one file")
    shutil.copyfile(folder / ONE, folder / "shard-00001-model-00001-of-00001.safetensors")
    with pytest.raises(DataError, match="distributed checkpoint"):
        open_model(read_model(str(folder)), ModelOptions("fp32", "cpu"))


def test_weights_with_an_adapter_on_top_are_refused(layout: Callable[[str], Path]) -> None:
    """transformers adds the adapter if peft is installed, and the digest would not contain its settings."""
    folder = layout("one file")
    put(folder / "adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "/x"})
    with pytest.raises(DataError, match="whole model and an adapter"):
        open_model(read_model(str(folder)), ModelOptions("fp32", "cpu"))


def test_a_damaged_pickle_is_named_in_words_of_ours(tiny_model: Models, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "model")
    (folder / ONE).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + bytes(1000))
    with pytest.raises(DataError, match="pickled weights are damaged or incomplete; download"):
        open_model(read_model(str(folder)), ModelOptions("fp32", "cpu"))


def test_a_model_of_the_hub_of_which_only_the_tokenizer_was_fetched_is_fetched_again(
    tiny_model: Models, tmp_path: Path
) -> None:
    copy = tmp_path / "hub/models--google-bert--bert-base-uncased/snapshots/abc"
    shutil.copytree(tiny_model("bert"), copy, ignore=shutil.ignore_patterns(ONE))
    with pytest.raises(DataError, match=r"has no weights .*lmk fetch -m google-bert/bert-base-unc"):
        open_model(read_model(str(copy)), ModelOptions())
    other = shutil.copytree(copy, tmp_path / "model")
    with pytest.raises(DataError, match=r"has no weights .*; copy them into the folder"):
        open_model(read_model(str(other)), ModelOptions())
