"""What is installed, read from the records of pip: nothing is imported."""

from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from packaging.requirements import Requirement

LMK = "lmkcli"


class Wanted(NamedTuple):
    """A distribution that is asked for: its requirement, and the version that is there ('' for none)."""

    requirement: Requirement
    version: str

    @property
    def fits(self) -> bool:
        """Whether it is there in a version that is asked for."""
        return bool(self.version) and self.requirement.specifier.contains(self.version, True)


def version(name: str) -> str:
    """The version of a distribution; empty where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def extras() -> list[str]:
    """The names of lmk's extras; none where lmk itself was not installed."""
    try:
        return metadata.metadata(LMK).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []


def wanted(extra: str = "") -> Iterator[Wanted]:
    """What lmk needs always, or what an extra adds to it, with the extras that it is made of."""
    for text in metadata.requires(LMK) or []:
        requirement = Requirement(text)
        if _belongs(requirement, extra):
            if requirement.name == LMK:
                for inner in sorted(requirement.extras):
                    yield from wanted(inner)
            else:
                yield Wanted(requirement, version(requirement.name))


def _belongs(requirement: Requirement, extra: str) -> bool:
    """Whether a requirement is this extra's, or, without one, lmk's own."""
    marker = requirement.marker
    if not extra:
        return marker is None or marker.evaluate({"extra": ""})
    return marker is not None and marker.evaluate({"extra": extra}) and "extra" in str(marker)
