import sys
from pathlib import Path

import pytest

from lmkcli.system import gpus


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of another torch, which is the one that is found."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return tmp_path / "torch"


@pytest.mark.parametrize(
    ("cuda", "hip", "cpu"),
    [("None", "None", True), ("'12.8'", "None", False), ("None", "'7'", False)],
)
def test_what_torch_was_built_for_is_read(torch: Path, cuda: str, hip: str, cpu: bool) -> None:
    text = f"__version__ = '3'\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"
    (torch / "version.py").write_text(text)
    assert gpus.built_for_cpu() == cpu


def test_torch_is_asked_in_a_process_of_its_own(
    torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(torch.parent))
    (torch / "__init__.py").write_text("raise OSError('libcudart.so: no such file')")
    assert gpus.seen(60) == ([], "OSError: libcudart.so: no such file")
    (torch / "__init__.py").write_text(
        "from types import SimpleNamespace as N\n"
        "each = N(name='H100', total_memory=80, major=9, minor=0)\n"
        "cuda = N(device_count=lambda: 1, get_device_properties=lambda i: each)\n"
    )
    assert gpus.seen(60) == ([("H100", 80, 9, 0)], "")
