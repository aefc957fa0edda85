"""An opened artifact: its folder and its manifest, which is read once and passed on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, overload

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import Manifest

AnyKind = TypeVar("AnyKind", bound=Manifest, covariant=True)
Kind = TypeVar("Kind", bound=Manifest)


@dataclass(frozen=True)
class Artifact(Generic[AnyKind]):
    """An artifact folder and its manifest. `open_artifact` reads it."""

    folder: Path
    manifest: AnyKind

    @property
    def fingerprint(self) -> str:
        """The digest of kind and identity."""
        return manifest.fingerprint(self.manifest)

    def check_unchanged(self) -> None:
        """Raise DataError if the manifest differs from the one that was written, except for its facts."""
        manifest.check_unchanged(self.folder, self.manifest)


@overload
def open_artifact(folder: Path) -> Artifact[Manifest]: ...
@overload
def open_artifact(folder: "Path | Artifact[Manifest]", *kinds: type[Kind]) -> Artifact[Kind]: ...
def open_artifact(
    folder: "Path | Artifact[Manifest]", *kinds: type[Manifest]
) -> Artifact[Manifest]:
    """Open an artifact folder of one of these kinds, or of any kind. An opened artifact is returned.

    Raises DataError if the folder has no valid manifest, or if it is of another kind.
    """
    if isinstance(folder, Artifact):
        if kinds and not isinstance(folder.manifest, kinds):
            raise manifest.wrong_kind(folder.folder, folder.manifest.kind, kinds)
        return folder
    return Artifact(folder, manifest.read(folder, *kinds))
