"""Model folders with drawn contents: whatever a file contains, a command ends with exit code 0, 2 or 3.

The drawn files have the structure of real ones, so that they pass the first checks: an adapter_config.json
with a few other values, matrices of other shapes, a header of safetensors with other offsets.
"""

import copy
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lmkcli.cli.exits import exit_codes
from lmkcli.errors import DataError
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import read_model
from lmkcli.models.tensors import read_tensors
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.models.transformer import open_model
from lmkcli.spec.recipe import EncoderConfig
from tests import damage, tiny

Models = Callable[[str], Path]
LAYER = "base_model.model.encoder.layer.0.attention.self.query"
WORDS = "base_model.model.embeddings.word_embeddings"
TABLE = "base_model.model.embeddings.position_embeddings.weight"
MATRICES, CONFIG = "adapter_model.safetensors", "adapter_config.json"
# An example takes some hundredths of a second; the nightly profile of hypothesis draws more.
EXAMPLES = settings(
    max_examples=settings().max_examples // 4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

wrong = st.one_of(
    st.sampled_from(damage.WRONG),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["LORA", "/dev/zero", "..", "\x1b[31m", "a\0b", "x/y", 10**400]),
)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Makes a fresh copy of a folder for each example; its cache of merged models is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def fresh(source: Path) -> Path:
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        shutil.rmtree(tmp_path / "folder", ignore_errors=True)
        return shutil.copytree(source, tmp_path / "folder")

    return fresh


@pytest.fixture(scope="module")
def adapter(tiny_model: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of rank 2 on one layer of the tiny BERT."""
    folder = tmp_path_factory.mktemp("adapter")
    a, b = torch.ones(2, tiny.WIDTH), torch.ones(tiny.WIDTH, 2)
    save_file({f"{LAYER}.lora_A.weight": a, f"{LAYER}.lora_B.weight": b}, folder / MATRICES)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_rslora": False, "use_dora": False}
    config["base_model_name_or_path"] = str(tiny_model("bert"))
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


def documented(folder: Path, *, tokenize: bool = False) -> None:
    """Open the model of a folder as a command does; every error has a documented exit code."""
    code: Any = 0
    try:
        with exit_codes():
            opened = read_model(str(folder))
            if tokenize:
                open_tokenizer(opened, EncoderConfig("", "", str(folder)))(["water \u0e01", ""])
            else:
                open_model(opened, ModelOptions("fp32", "cpu"))
    except SystemExit as left:
        code = left.code
    assert code in (0, 2, 3)


@EXAMPLES
@given(data=st.data())
def test_no_configuration_of_an_adapter_is_a_bug(
    adapter: Path, scratch: Callable[[Path], Path], data: st.DataObject
) -> None:
    folder = scratch(adapter)
    config = json.loads((folder / CONFIG).read_text())
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(config)), wrong, max_size=2))
    text = json.dumps(config | changes)
    (folder / CONFIG).write_text(text, "utf-8", "surrogatepass")
    documented(folder)


shapes = st.lists(st.sampled_from([0, 1, 2, 3, tiny.WIDTH, tiny.VOCABULARY]), max_size=3)
dtypes = st.sampled_from(
    [torch.float32, torch.float16, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn]
)
names = st.sampled_from(
    [
        *(f"{LAYER}.{end}" for end in ("lora_A.weight", "lora_B.weight", "weight", "bias")),
        *(f"{WORDS}.{end}" for end in ("lora_embedding_A", "lora_embedding_B", "weight")),
        *(TABLE, "\x1b[2J", ""),
    ]
)


@EXAMPLES
@given(tensors=st.dictionaries(names, st.tuples(shapes, dtypes), max_size=4), whole=st.booleans())
def test_no_matrices_are_a_bug(
    adapter: Path, scratch: Callable[[Path], Path], tensors: dict[str, Any], whole: bool
) -> None:
    folder = scratch(adapter)
    made = {name: torch.ones(shape).to(dtype) for name, (shape, dtype) in tensors.items()}
    save_file((load_file(folder / MATRICES) if whole else {}) | made, folder / MATRICES)
    documented(folder)


@pytest.mark.parametrize(
    ("name", "dtype", "what"),
    [("bias", torch.complex64, "complex"), ("lora_A.weight", torch.int8, "whole")],
)
def test_an_adapter_without_real_numbers_is_refused(
    adapter: Path, scratch: Callable[[Path], Path], name: str, dtype: torch.dtype, what: str
) -> None:
    folder = scratch(adapter)
    shape = (tiny.WIDTH,) if name == "bias" else (2, tiny.WIDTH)
    added = {f"{LAYER}.{name}": torch.ones(shape, dtype=dtype)}
    save_file(load_file(folder / MATRICES) | added, folder / MATRICES)
    with pytest.raises(DataError, match=f"{what} numbers"):
        open_model(read_model(str(folder)), ModelOptions("fp32", "cpu"))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(("dtype", "what"), [("complex64", "complex"), ("int8", "whole")])
def test_weights_that_are_no_real_numbers_are_refused(
    tiny_model: Models, scratch: Callable[[Path], Path], name: str, dtype: str, what: str
) -> None:
    """They would lose their imaginary part, or have no scale."""
    folder = scratch(tiny_model("bert"))
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    layer = next(each for each in weights if each.endswith("query.weight"))
    weights[layer] = weights[layer].to(getattr(torch, dtype))
    if name.endswith(".bin"):
        torch.save(weights, folder / name)
    else:
        save_file(weights, folder / name, metadata={"format": "pt"})
    with pytest.raises(DataError, match=f"query.weight has {what} numbers"):
        open_model(read_model(str(folder)), ModelOptions("fp32", "cpu"))


def test_empty_metadata_hide_no_complex_numbers(tmp_path: Path) -> None:
    """safetensors reads null as no metadata."""
    tensor = {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": None, "a.weight": tensor}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert load_file(file)["a.weight"].is_complex()
    with pytest.raises(DataError, match=r"a\.weight has complex numbers"):
        read_tensors(file, "the weights")


numbers = st.one_of(
    st.integers(-2, 200), st.sampled_from([1 << 31, 1 << 63, (1 << 64) - 1, 10**30])
)
entries = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "BF16", "F4", "C64", "X", "\x1b[31m", 3, None])},
    optional={
        "shape": st.one_of(st.lists(numbers, max_size=3), wrong),
        "data_offsets": st.one_of(st.lists(numbers, min_size=2, max_size=2), wrong),
    },
)


def headers(good: bytes, draw: st.DataObject) -> bytes:
    """A file of safetensors in which an entry of the header, its length, or the data are others."""
    length = struct.unpack("<Q", good[:8])[0]
    header, body = json.loads(good[8 : 8 + length]), good[8 + length :]
    entry = draw.draw(st.sampled_from([*sorted(header), "__metadata__", "another"]))
    header[entry] = draw.draw(st.one_of(entries, wrong))
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    length = draw.draw(st.one_of(st.just(len(text)), numbers.map(lambda n: n % (1 << 64))))
    body = draw.draw(st.sampled_from([body, body[:-1], body + b"\0", b""]))
    return struct.pack("<Q", length) + text + body


@EXAMPLES
@given(data=st.data(), whole=st.booleans())
def test_no_header_of_safetensors_is_a_bug(
    adapter: Path,
    tiny_model: Models,
    scratch: Callable[[Path], Path],
    data: st.DataObject,
    whole: bool,
) -> None:
    folder = scratch(tiny_model("bert") if whole else adapter)
    file = folder / ("model.safetensors" if whole else MATRICES)
    file.write_bytes(headers(file.read_bytes(), data))
    documented(folder)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value within a JSON value, of long lists and objects only to the first ones."""
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in list(pairs)[:12]:
        yield (*at, key)
        yield from places(inner, (*at, key))


def changed(file: Path, data: st.DataObject) -> None:
    """Give a JSON file another value at a drawn place."""
    value = json.loads(file.read_text())
    *above, last = data.draw(st.sampled_from(list(places(value))))
    within = value
    for key in above:
        within = within[key]
    within[last] = copy.deepcopy(data.draw(wrong))
    file.write_text(json.dumps(value), "utf-8", "surrogatepass")


@EXAMPLES
@given(data=st.data())
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_no_configuration_of_a_model_is_a_bug(
    tiny_model: Models, scratch: Callable[[Path], Path], data: st.DataObject, name: str
) -> None:
    folder = scratch(tiny_model(name))
    changed(folder / "config.json", data)
    documented(folder)


@pytest.mark.parametrize("value", ["x", 5, ["x"], {}, {"hidden_size": 8}], ids=str)
@pytest.mark.parametrize("key", ["text_encoder", "decoder", "generator", "text_config"])
def test_a_part_for_texts_that_the_architecture_lacks_is_no_bug(
    tiny_model: Models, scratch: Callable[[Path], Path], key: str, value: Any
) -> None:
    folder = scratch(tiny_model("bert"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    documented(folder)


@EXAMPLES
@given(data=st.data())
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_no_tokenizer_is_a_bug(
    tiny_model: Models, scratch: Callable[[Path], Path], data: st.DataObject, name: str
) -> None:
    folder = scratch(tiny_model("bert"))
    changed(folder / name, data)
    documented(folder, tokenize=True)
