"""Adapters of anyone: links, special files, impossible contents; and the cache of merged models."""

import errno
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertModel

from lmkcli.errors import DataError
from lmkcli.models import lora
from lmkcli.models.lookup import read_model
from tests import tiny

Models = Callable[[str], Path]
LAYER = "base_model.model.encoder.layer.0.attention.self.query"
TABLE = "base_model.model.embeddings.position_embeddings.weight"
MATRICES = "adapter_model.safetensors"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of merged models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lmk" / "merged"


@pytest.fixture
def adapter(tiny_model: Models, tmp_path: Path, cache: Path) -> Path:
    """An adapter of rank 2 on one layer of the tiny BERT."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, generator=generator) for shape in ((2, tiny.WIDTH), (tiny.WIDTH, 2)))
    save_file({f"{LAYER}.lora_A.weight": a, f"{LAYER}.lora_B.weight": b}, folder / MATRICES)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
    config["base_model_name_or_path"] = str(tiny_model("bert"))
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def refused(folder: Path, why: str) -> None:
    """Opening the adapter names its folder and the reason, and leaves nothing in the cache."""
    with pytest.raises(DataError, match=why) as caught:
        read_model(str(folder))
    assert str(folder) in str(caught.value)
    merged = Path(os.environ["XDG_CACHE_HOME"]) / "lmk" / "merged"
    assert not merged.is_dir() or not list(merged.iterdir())


def test_an_adapter_is_added_to_its_base(adapter: Path, tiny_model: Models) -> None:
    before = load_file(tiny_model("bert") / "model.safetensors")
    after = load_file(read_model(str(adapter)).path / "model.safetensors")
    matrices = load_file(adapter / MATRICES)
    product = matrices[f"{LAYER}.lora_B.weight"] @ matrices[f"{LAYER}.lora_A.weight"]
    name = "encoder.layer.0.attention.self.query.weight"
    torch.testing.assert_close(after.pop(name), before.pop(name) + 2 * product)
    assert all(torch.equal(value, before[key]) for key, value in after.items())


def test_every_version_of_transformers_makes_the_same_model(
    adapter: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors that were made with the adapter are of the same model after an upgrade."""
    digests = []
    for version in ("5.8.0", "5.99.0"):
        monkeypatch.setattr("transformers.configuration_utils.__version__", version)
        shutil.rmtree(cache, ignore_errors=True)
        digests.append(read_model(str(adapter)).weights_digest)
    assert digests[0] == digests[1]


# --- links and special files -------------------------------------------------------------------------


def test_only_the_files_of_a_model_are_copied(adapter: Path, tmp_path: Path) -> None:
    """Whatever else is in the folder is neither read nor followed: here, it would never end."""
    for name in ("a", "b"):
        (adapter / name).symlink_to(".")
    (adapter / "self").symlink_to("self")
    (adapter / "dangling").symlink_to("nowhere")
    (adapter / "zero").symlink_to("/dev/zero")
    os.mkfifo(adapter / "pipe")
    (adapter / "sub").mkdir()
    os.mkfifo(adapter / "sub" / "pipe.json")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret.json").write_text("{}")
    (adapter / "more").symlink_to(tmp_path / "private")
    (adapter / "README.md").write_text("a model card")
    merged = read_model(str(adapter)).path
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in merged.iterdir()} <= names | {"special_tokens_map.json"}


@pytest.mark.parametrize("name", ["tokenizer.json", "adapter_config.json", MATRICES, "notes.txt"])
@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_special_files_are_refused(
    adapter: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (adapter / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(adapter / name)
    elif kind == "device":
        (adapter / name).symlink_to("/dev/zero")
    else:
        monkeypatch.chdir(adapter)  # the path of a socket must be short
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(name)
    refused(adapter, rf"{name} is a {kind}; name a file")


@pytest.mark.parametrize("target", ["../private.json", "gone.json", "modules.json"])
def test_links_out_of_the_folder_are_refused(adapter: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "private.json").write_text("{}")
    (adapter / "modules.json").symlink_to(target)
    refused(adapter, r"modules.json is a link (out of|to a missing file)")


def test_links_within_the_folder_and_of_the_hub_cache_are_read(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's cache: snapshots/<commit>/<file> leads to blobs/<digest>, and a module's file as well."""
    (adapter / "modules.json").write_text(
        json.dumps(
            [
                {"type": "sentence_transformers.models.Transformer", "path": ""},
                {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
            ]
        )
    )
    pooling = adapter / "1_Pooling" / "config.json"
    pooling.parent.mkdir()
    pooling.write_text('{"pooling_mode": "cls"}')
    snapshot, blobs = (tmp_path / "models--o--n" / name for name in ("snapshots/abc", "blobs"))
    blobs.mkdir(parents=True)
    for number, file in enumerate(path for path in adapter.rglob("*") if path.is_file()):
        link = snapshot / file.relative_to(adapter)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, blobs / str(number))
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    folder = read_model(str(snapshot))
    assert folder.pool == "cls"
    assert not any(path.is_symlink() for path in folder.path.rglob("*"))
    (adapter / "vocab.txt").symlink_to("modules.json")
    assert (read_model(str(adapter)).path / "vocab.txt").is_file()
    # an older download: a folder of links into the cache of the hub
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "models--o--n"))
    old = tmp_path / "old"
    old.mkdir()
    for link in snapshot.iterdir():
        if link.is_symlink():
            (old / link.name).symlink_to(link)
    shutil.copytree(snapshot / "1_Pooling", old / "1_Pooling")
    assert read_model(str(old)).pool == "cls"


def test_a_pooling_may_come_from_the_base(
    adapter: Path, tiny_model: Models, tmp_path: Path
) -> None:
    base = shutil.copytree(tiny_model("bert"), tmp_path / "base")
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    ]
    (base / "modules.json").write_text(json.dumps(modules))
    (base / "1_Pooling").mkdir()
    (base / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken"}')
    change(adapter, base_model_name_or_path=str(base))
    assert read_model(str(adapter)).pool == "last"


@pytest.mark.parametrize("path", ["../../etc", "/etc", "1_Pooling/../../x", "a\0b"])
def test_a_module_out_of_the_folder_is_refused(adapter: Path, path: str) -> None:
    (adapter / "modules.json").write_text(
        json.dumps([{"type": "sentence_transformers.models.Transformer", "path": path}])
    )
    refused(adapter, r"modules.json names .* out of the folder")


def test_sizes_are_bounded(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (adapter / "tokenizer.json").touch()
    os.truncate(adapter / "tokenizer.json", 1 << 40)  # a sparse file
    refused(adapter, r"tokenizer.json is larger than 268,435,456 bytes")
    (adapter / "tokenizer.json").unlink()
    texts = [adapter / f"{number}.json" for number in range(5)]
    for text in texts:
        text.touch()
        os.truncate(text, 1 << 28)  # the most of one file
    refused(adapter, "more than 1,073,741,824 bytes")
    for text in texts:
        text.unlink()
    os.truncate(adapter / MATRICES, 1 << 40)
    refused(adapter, f"{MATRICES} is a sparse file")
    monkeypatch.setattr("lmkcli.models.adapters._MAX_BYTES", 1000)
    os.truncate(adapter / MATRICES, 1 << 24)
    refused(adapter, f"{MATRICES} has 16,777,216 bytes, far more than its base model")


# --- impossible contents -----------------------------------------------------------------------------


def change(folder: Path, **values: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("r", 0), ("r", -2), ("r", 1.5), ("r", "2"), ("r", None), ("r", True), ("r", 10**400),
        ("r", float("inf")),
        ("lora_alpha", "4"), ("lora_alpha", None), ("lora_alpha", 10**400), ("lora_alpha", []),
        ("use_rslora", "yes"), ("peft_type", ["LORA"]), ("peft_type", None),
        ("base_model_name_or_path", 7), ("base_model_name_or_path", None),
    ],
)  # fmt: skip
def test_fields_of_another_type_are_named(adapter: Path, field: str, value: Any) -> None:
    change(adapter, **{field: value})
    refused(adapter, rf"adapter_config.json cannot be read \({field}: .*merge it with peft")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"peft_type": "IA3"}, r"is an adapter of another kind \(IA3\)"),
        ({"lora_alpha": float("nan")}, "a lora_alpha that is not finite"),
    ],
)
def test_another_kind_of_adapter_is_refused(
    adapter: Path, values: dict[str, Any], message: str
) -> None:
    change(adapter, **values)
    refused(adapter, message)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"\xff", b"[" * 5000, b'{"r": 1, "r": 2}'])
def test_a_configuration_that_is_no_object_is_refused(adapter: Path, text: bytes) -> None:
    (adapter / "adapter_config.json").write_bytes(text)
    refused(adapter, "adapter_config.json cannot be read")


A, B = f"{LAYER}.lora_A.weight", f"{LAYER}.lora_B.weight"
WORDS = "base_model.model.embeddings.word_embeddings"


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({B: None}, "query .*only one .*lora_A and lora_B"),
        ({A: None}, "query .*only one .*lora_A and lora_B"),
        (
            {f"{WORDS}.lora_embedding_A": torch.ones(2, 9)},
            "word_embeddings .*only one .*lora_embedding_A",
        ),
        ({A: torch.ones(3, tiny.WIDTH)}, r"query .*product \(lora_A \[3, 32\] .*lora_B \[32, 2\]"),
        ({A: torch.ones(tiny.WIDTH)}, r"query .*product \(lora_A \[32\]"),
        ({A: torch.tensor(1.0)}, r"query .*product \(lora_A \[\]"),
        (
            {A: torch.ones(2, tiny.WIDTH, dtype=torch.complex64)},
            "lora_A.weight has complex numbers",
        ),
        ({A: torch.ones(2, 5)}, r"\b2 tensors .*base model"),
        ({"another.weight": torch.ones(1)}, r"\b1 tensors .*base model"),
        ({f"{WORDS}.weight": torch.ones(3)}, r"word_embeddings\.weight .*\[3\], .*\[512, 32\]"),
        ({TABLE: torch.tensor(1.0)}, r"position_embeddings\.weight .*\[\], .*\[128, 32\]"),
        ({TABLE: torch.ones(0, tiny.WIDTH)}, r"position_embeddings\.weight .*\[0, 32\]"),
        ({TABLE: torch.ones(4, 5)}, r"position_embeddings\.weight .*\[4, 5\]"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(
    adapter: Path, tensors: dict[str, torch.Tensor | None], why: str
) -> None:
    state: dict[str, Any] = load_file(adapter / MATRICES) | tensors
    save_file(
        {name: value for name, value in state.items() if value is not None}, adapter / MATRICES
    )
    refused(adapter, why)


def test_a_table_of_positions_may_be_longer(adapter: Path) -> None:
    state = load_file(adapter / MATRICES) | {TABLE: torch.ones(200, tiny.WIDTH)}
    save_file(state, adapter / MATRICES)
    assert read_model(str(adapter)).limit == 200


@pytest.mark.parametrize(
    "content", [b"", b"\1", b"\2\0\0\0\0\0\0\0{}x", b"cos\nsystem\n(S'true'\ntR."]
)
def test_a_file_without_tensors_is_refused(adapter: Path, content: bytes) -> None:
    (adapter / MATRICES).write_bytes(content)
    refused(adapter, f"{MATRICES}, the matrices of an adapter, cannot be loaded")
    (adapter / MATRICES).unlink()
    refused(adapter, f"{MATRICES} is missing")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pytorch_model.bin", b"cos\nsystem\n(S'true'\ntR."),
        ("pytorch_model.bin", b"\x80\x04N."),
    ],
)
def test_weights_of_the_base_that_are_none_are_refused(
    adapter: Path, tiny_model: Models, tmp_path: Path, name: str, content: bytes
) -> None:
    base = shutil.copytree(tiny_model("bert"), tmp_path / "base")
    (base / "model.safetensors").unlink()
    (base / name).write_bytes(content)
    change(adapter, base_model_name_or_path=str(base))
    refused(adapter, f"the base model {base} of the adapter .* cannot be loaded")


# --- the cache ---------------------------------------------------------------------------------------


def test_leftovers_of_a_killed_process_are_removed(adapter: Path, cache: Path) -> None:
    """Also those of earlier versions of lmk."""
    for name in (".growing-x1", f".{'0' * 32}.123.456"):
        (cache / name / "sub").mkdir(parents=True)
        (cache / name / "sub" / "config.json").write_text("{}")
    merged = read_model(str(adapter)).path
    assert list(cache.iterdir()) == [merged]


def test_two_processes_merge_at_once(
    adapter: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the first, and uses its result; each other adapter is merged as well."""
    other = shutil.copytree(adapter, adapter.with_name("other"))
    change(other, lora_alpha=8)
    calls, write = [], lora.write_merged

    def slowly(growing: Path, *words: Any) -> None:
        calls.append(growing)
        write(growing, *words)
        assert growing.is_dir()  # nobody has removed it

    monkeypatch.setattr(lora, "write_merged", slowly)
    found: dict[str, Path] = {}

    def open_it(name: str, folder: Path) -> None:
        found[name] = read_model(str(folder)).path

    places = {"one": adapter, "same": adapter, "other": other}
    threads = [threading.Thread(target=open_it, args=each) for each in places.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 2
    assert found["one"] == found["same"] != found["other"]
    assert {path.name for path in cache.iterdir()} == {path.name for path in found.values()}


@pytest.mark.parametrize("at", ["copyfile", "fsync", "save_pretrained"])
def test_a_full_disk_is_named_and_leaves_nothing(
    adapter: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        if at == "save_pretrained":  # an error of another library, without a number
            raise RuntimeError("I/O error: No space left on device (os error 28)")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "base/config.json")

    with monkeypatch.context() as patched:
        place: Any = {"copyfile": shutil, "fsync": os}.get(at, BertModel)
        patched.setattr(place, at, full)
        with pytest.raises(OSError, match="No space left") as caught:
            read_model(str(adapter))
        assert caught.value.filename == str(cache.parent)
        assert list(cache.iterdir()) == []
    assert read_model(str(adapter)).path.is_dir()
