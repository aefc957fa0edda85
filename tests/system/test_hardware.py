import os
import sys
from pathlib import Path

import pytest

from lmkcli.system import hardware


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a fake torch that precedes the installed one."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return tmp_path / "torch"


@pytest.mark.parametrize(
    ("cuda", "hip", "cpu"),
    [("None", "None", True), ("'12.8'", "None", False), ("None", "'7'", False)],
)
def test_the_build_of_torch_is_recognised(torch: Path, cuda: str, hip: str, cpu: bool) -> None:
    text = f"__version__ = '3'\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"
    (torch / "version.py").write_text(text)
    assert hardware.torch_built_for_cpu() == cpu


def test_the_gpus_of_torch_are_listed_in_a_separate_process(
    torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(torch.parent))
    (torch / "__init__.py").write_text("raise OSError('libcudart.so: no such file')")
    assert hardware.torch_gpus(60) == ([], "OSError: libcudart.so: no such file")
    (torch / "__init__.py").write_text(
        "from types import SimpleNamespace as N\n"
        "each = N(name='H100', total_memory=80, major=9, minor=0)\n"
        "cuda = N(device_count=lambda: 1, get_device_properties=lambda i: each)\n"
    )
    assert hardware.torch_gpus(60) == ([("H100", 80, 9, 0)], "")


def test_some_of_the_machines_memory_is_free() -> None:
    assert 0 < hardware.free_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_processors_and_their_cores() -> None:
    assert 1 <= hardware.physical_cores() <= hardware.usable_processors() <= (os.cpu_count() or 1)
