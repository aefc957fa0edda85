"""Other programs, and the Python packages that pip installed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

LMK = "lmkcli"
OLD_EXTRAS = ("cpu", "gpu")  # former names of faiss-cpu and faiss-gpu, which pip still accepts
_SAFE_PATH = "PYTHONSAFEPATH"  # like the option -P, also for the processes of a library


class ProgramOutput(NamedTuple):
    """The output of a program (stdout, else stderr), or the reason why there is none."""

    text: str
    error: str


def run_program(words: Sequence[str | Path], seconds: float) -> ProgramOutput:
    """Run a program without input for at most `seconds`. A failure is returned, not raised."""
    try:
        with safe_imports():
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
            )
    except subprocess.TimeoutExpired:
        return ProgramOutput("", f"no answer within {seconds:g} s")
    except (OSError, UnicodeDecodeError) as error:
        return ProgramOutput("", str(error))
    if done.returncode:
        last_line = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        return ProgramOutput("", last_line or f"it ended with exit code {done.returncode}")
    return ProgramOutput(done.stdout.strip() or done.stderr.strip(), "")


def start_python(module: str, **variables: str) -> "subprocess.Popen[bytes]":
    """Start a module of lmk in a process that this one talks to by its standard input and output.

    Signals for a group of processes, such as Ctrl-C, do not reach it: this process stops in good order, and
    ends its children.
    """
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # a child inherits what is blocked
    try:
        with safe_imports():
            return subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **variables},
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def safe_imports() -> Iterator[None]:
    """Make Python processes that start in the block import no module from the current folder.

    The folder may contain files of other people, such as a torch.py next to a collection.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


class Dependency(NamedTuple):
    """A requirement of lmk and the installed version of that distribution ('' if it is missing)."""

    requirement: Requirement
    version: str

    @property
    def satisfied(self) -> bool:
        """Whether a version is installed that the requirement accepts."""
        return bool(self.version) and self.requirement.specifier.contains(self.version, True)


def installed_version(name: str) -> str:
    """Return the version of an installed distribution; empty if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def extras() -> list[str]:
    """Return the names of lmk's extras, without old names of others; empty if pip did not install lmk."""
    try:
        names = metadata.metadata(LMK).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []
    return [name for name in names if name not in OLD_EXTRAS]


def dependencies(extra: str = "") -> Iterator[Dependency]:
    """Yield the requirements of lmk itself, or those that an extra adds, including the extras it contains."""
    for text in metadata.requires(LMK) or []:
        requirement = Requirement(text)
        if not _belongs(requirement, extra):
            continue
        if requirement.name == LMK:
            for inner in sorted(requirement.extras):
                yield from dependencies(inner)
        else:
            yield Dependency(requirement, installed_version(requirement.name))


def _belongs(requirement: Requirement, extra: str) -> bool:
    """Return whether a requirement belongs to this extra, or to lmk itself if `extra` is empty."""
    marker = requirement.marker
    if not extra:
        return marker is None or marker.evaluate({"extra": ""})
    return marker is not None and marker.evaluate({"extra": extra}) and "extra" in str(marker)
