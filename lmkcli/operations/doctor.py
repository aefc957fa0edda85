"""Doctor: check this machine, and print how to fix problems."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from lmkcli import __version__, catalog
from lmkcli.errors import CheckFailed
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table, columns_of
from lmkcli.spec.settings import Flag
from lmkcli.spec.values import is_digits
from lmkcli.system import caches, hardware, network, programs
from lmkcli.text.formatting import size

TIMEOUT = 10.0  # seconds for a program that prints its version
IMPORT_TIMEOUT = 120.0  # seconds for a program that imports torch, possibly from a slow disk
_COUNTING_TIME = 1.0  # seconds for counting the files of a cache
_LOW_DISK = 2e9  # bytes of free disk: too little for a model and its vectors
FAISS_GPU = "faiss-gpu"
_FOR_DEVELOPERS = ("docs", "test")  # extras that no command needs
_NOT_IMPORTED = ("all", *_FOR_DEVELOPERS)


class State(StrEnum):
    """The state of a part: it works, is missing, needs attention, or is installed but broken."""

    ok = "ok"
    none = "none"
    look = "look"
    broken = "broken"


class Check(NamedTuple):
    """The state of one part, how to fix or add it, and facts for programs."""

    part: str
    state: State
    found: str
    fix: str = ""
    facts: dict[str, Any] = {}  # noqa: RUF012 (never changed)


@dataclass(frozen=True, repr=False)
class Diagnosed(Result):
    """The state of each part of this machine: libraries, extras, threads, GPUs, caches, Java, SLURM."""

    parts: tuple[Check, ...]

    @property
    def broken(self) -> list[str]:
        """The names of parts that are installed but do not work."""
        return [check.part for check in self.parts if check.state == "broken"]

    def as_json(self) -> Any:
        """Return whether everything works, and the parts with their facts."""
        return {"works": not self.broken, "parts": [check._asdict() for check in self.parts]}

    def as_columns(self) -> Mapping[str, Any]:
        """Return one row per part."""
        return columns_of([check._asdict() for check in self.parts])

    def blocks(self) -> Iterator[Table | str]:
        """Yield the table, then commands that fix broken parts and add missing ones."""
        rows = [[check.part, check.state, check.found] for check in self.parts]
        yield Table(["part", "state", "found"], rows)
        fixes = [check for check in self.parts if check.state in ("broken", "look")]
        additions = [check for check in self.parts if check.state == "none"]
        for title, found in (("To fix:", fixes), ("To add:", additions)):
            commands = [f"  {check.part}: {check.fix}" for check in found if check.fix]
            if commands:
                yield "\n".join(["", title, *commands])

    @property
    def failure(self) -> CheckFailed | None:
        """The error if a part is broken."""
        return CheckFailed(f"broken: {', '.join(self.broken)}") if self.broken else None


@dataclass(frozen=True)
class Doctor(Operation[Diagnosed]):
    """Check this machine, and print how to fix problems.

    It checks libraries, extras, threads, GPUs, caches, Java and SLURM. It downloads nothing, and imports few
    libraries. Exit code 4 means that a part is broken. A missing optional part is not broken.
    """

    verb: ClassVar[str] = "doctor"

    thorough: Annotated[
        bool, Flag("Also import every library, to find broken ones; takes seconds.")
    ] = False

    def execute(self, report: Report) -> Diagnosed:
        """Run the checks."""
        return Diagnosed(tuple(checks(self.thorough, report)))


def checks(thorough: bool, report: Report) -> Iterator[Check]:
    """Yield all checks, in the order of the output."""
    yield from _libraries(thorough, report)
    yield _threads()
    yield Check("memory", State.ok, f"{size(hardware.free_memory())} free")
    yield _gpu(report)
    yield from _caches()
    for name in catalog.CHECKS:
        yield from catalog.CHECKS.load(name)()
    yield _slurm()
    yield _network()


def _libraries(thorough: bool, report: Report) -> Iterator[Check]:
    """Check lmk itself, its libraries and its extras."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    facts = {"lmk": __version__, "python": platform.python_version()}
    found = f"{__version__}, {system}"
    if not programs.installed_version(programs.LMK):
        found += "; not installed by pip, so its libraries cannot be checked"
        yield Check("lmk", State.look, found, "pip install . (in the folder of lmk)", facts)
        return
    yield Check("lmk", State.ok, found, facts=facts)
    for extra in ("", *programs.extras()):
        check = _extra(extra)
        if extra in _FOR_DEVELOPERS and check.state == State.none:
            continue
        yield _imported(extra, check, report) if thorough and check.state == State.ok else check


def _extra(name: str) -> Check:
    """Check the versions of the libraries of an extra, or of the required libraries. Names missing ones."""
    required = list(programs.dependencies(name))
    part, line = (f"extra {name}", f'pip install "lmkcli[{name}]"') if name else ("libraries", "")
    facts = {"versions": {each.requirement.name: each.version for each in required}}
    missing = [each for each in required if not each.version]
    other = [each for each in required if each.version and not each.satisfied]
    if not missing and not other:
        return _conflict(name) or Check(part, State.ok, _versions(required), facts=facts)
    line = line or "pip install " + " ".join(f'"{each.requirement}"' for each in missing + other)
    problems = [f"{each.requirement.name} is not installed" for each in missing]
    problems += [
        f"{each.requirement.name} is {each.version}, not {each.requirement.specifier}"
        for each in other
    ]
    # Another program may need another version of a library of an extra that is not installed.
    state = State.none if name and missing else State.broken
    if name == FAISS_GPU and state == State.none and not hardware.gpu_present():
        return Check(part, state, f"{_few(problems)}; it needs a GPU", facts=facts)
    if name == FAISS_GPU and programs.installed_version("faiss-cpu"):
        line = f"pip uninstall faiss-cpu && {line}"
    return Check(part, state, _few(problems), line, facts)


def _conflict(extra: str) -> Check | None:
    """Check for the extras faiss-gpu and faiss-cpu together, which install the same module."""
    if extra != FAISS_GPU or not programs.installed_version("faiss-cpu"):
        return None
    found = "faiss-gpu and faiss-cpu are both installed, and overwrite each other"
    fix = 'pip uninstall faiss-cpu faiss-gpu && pip install "lmkcli[faiss-gpu]"'
    return Check(f"extra {extra}", State.broken, found, fix)


def _versions(dependencies: list[programs.Dependency]) -> str:
    first = ("torch", "transformers")  # the most relevant versions
    ordered = sorted(dependencies, key=lambda each: each.requirement.name not in first)
    return _few([f"{each.requirement.name} {each.version}" for each in ordered])


def _few(words: list[str]) -> str:
    """Return the first four words, and the number of further ones."""
    more = f" and {len(words) - 4} more" if len(words) > 4 else ""
    return ", ".join(words[:4]) + more


def _imported(extra: str, check: Check, report: Report) -> Check:
    """Extend a check by importing its modules in a separate process."""
    modules = _modules(extra)
    if not modules:
        return check
    report.note(f"importing {check.part}")
    answer = programs.run_program(
        [sys.executable, "-P", "-c", f"import {', '.join(modules)}"], IMPORT_TIMEOUT
    )
    if not answer.error:
        return check._replace(found=f"{check.found}; imported")
    fix = f'pip install --force-reinstall "lmkcli[{extra}]"' if extra else ""
    fix = (
        fix or f'run {Path(sys.executable).name} -c "import {", ".join(modules)}" for the traceback'
    )
    return check._replace(state=State.broken, found=answer.error, fix=fix)


def _modules(extra: str) -> list[str]:
    """Return the modules to import for an extra: modules of lmk that need it, or of its libraries."""
    rows = [row for row in catalog.own_rows() if row.extra == extra]
    if extra in _NOT_IMPORTED:
        return []
    if extra and rows:
        return sorted({row.target.partition(":")[0] for row in rows})
    names = (each.requirement.name.replace("-", "_") for each in programs.dependencies(extra))
    return [name for name in names if find_spec(name)]


def _threads() -> Check:
    usable, cores = hardware.usable_processors(), hardware.physical_cores()
    facts: dict[str, Any] = {
        "processors": usable,
        "cores": cores,
        "machine": os.cpu_count(),
    }
    variable = os.environ.get("OMP_NUM_THREADS", "")
    found = f"{usable} of {os.cpu_count()} processors ({cores} physical); OMP_NUM_THREADS"
    facts["OMP_NUM_THREADS"] = variable or None
    if not variable:
        return Check("threads", State.ok, f"{found} is not set: torch uses {cores}", facts=facts)
    found += f"={variable}"
    if not is_digits(variable.split(",")[0].strip()):
        return Check(
            "threads", State.broken, f"{found} is not a number", "unset OMP_NUM_THREADS", facts
        )
    if int(variable.split(",")[0]) > usable:
        fix = f"export OMP_NUM_THREADS={cores}"
        return Check("threads", State.look, f"{found}, more than the usable processors", fix, facts)
    return Check("threads", State.ok, found, facts=facts)


def _gpu(report: Report) -> Check:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not hardware.gpu_present():
        return Check("GPU", State.none, "none found; lmk computes on the CPU")
    if hidden is not None and hidden.strip() in ("", "-1"):
        found = f"hidden by CUDA_VISIBLE_DEVICES={hidden}"
        return Check("GPU", State.look, found, "unset CUDA_VISIBLE_DEVICES")
    if hardware.torch_built_for_cpu():
        found = f"found, but torch {programs.installed_version('torch')} was built without CUDA"
        return Check(
            "GPU", State.look, found, "install torch with CUDA: https://pytorch.org/get-started"
        )
    report.note("querying the GPUs with torch, which takes some seconds")
    seen = hardware.torch_gpus(IMPORT_TIMEOUT)
    if seen.error or not seen.gpus:
        found = seen.error or "found, but not usable by torch; its driver may be too old"
        return Check("GPU", State.broken, found, "run nvidia-smi to see errors of the driver")
    names = [
        f"{each.name} ({size(each.memory)}, {'bf16' if each.major >= 8 else 'fp32'})"
        for each in seen.gpus
    ]
    return Check("GPU", State.ok, _few(names), facts={"gpus": [g._asdict() for g in seen.gpus]})


def _caches() -> Iterator[Check]:
    """Check the folders of downloads."""
    from lmkcli.data.hub_layouts import MIRROR

    yield _cache("cache of the hub", caches.hub_cache(), "HF_HOME")
    yield _cache("cache of ir_datasets", caches.ir_datasets_cache(), "IR_DATASETS_HOME")
    yield _cache("cache of lmk", caches.lmk_cache(), "XDG_CACHE_HOME")
    if mirror := os.environ.get(MIRROR):
        if Path(mirror).expanduser().is_dir():
            yield Check("mirror", State.ok, f"{MIRROR}={mirror}")
        else:
            found = f"{MIRROR}={mirror} is not a folder"
            yield Check("mirror", State.broken, found, f"unset {MIRROR}")


def _cache(part: str, folder: Path, variable: str) -> Check:
    usage = caches.inspect_folder(folder, _COUNTING_TIME)
    used = size(usage.bytes) if usage.whole else f"more than {size(usage.bytes)}"
    found = f"{folder}: {used}, {size(usage.free)} free"
    facts = usage._asdict() | {"folder": str(folder)}
    fix = f"export {variable}=… (a writable folder on a disk with free space)"
    if folder.exists() and not folder.is_dir():
        return Check(part, State.broken, f"{folder} is a file", fix, facts)
    if not usage.writable:
        return Check(part, State.look, f"{found}, not writable", fix, facts)
    state = State.look if usage.free < _LOW_DISK else State.ok
    return Check(part, state, found, fix if state == State.look else "", facts)


def _slurm() -> Check:
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        return Check("SLURM", State.none, "no sbatch found; jobs run on this machine")
    answer = programs.run_program([sbatch, "--version"], TIMEOUT)
    if answer.error:
        fix = "export SLURM_CONF=… (the cluster's slurm.conf), or remove the package"
        return Check("SLURM", State.broken, f"{sbatch}: {answer.error}", fix)
    job = os.environ.get("SLURM_JOB_ID")
    inside = f", inside job {job}" if job else ""
    return Check("SLURM", State.ok, answer.text + inside, facts={"version": answer.text})


def _network() -> Check:
    """Check whether downloads are allowed, without trying one."""
    if network.forbidden():
        found = f"{network.VARIABLE} is set: downloads are disabled"
        return Check("network", State.look, found, f"unset {network.VARIABLE}")
    through = [name for name in ("HF_ENDPOINT", "HTTPS_PROXY", "https_proxy") if name in os.environ]
    found = (
        f"downloads are allowed{' through ' + ', '.join(through) if through else ''}; not tested"
    )
    return Check("network", State.ok, found, facts={"through": through})
