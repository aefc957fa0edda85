"""Verify: encode a sample of stored texts again, or compare an index with its digests."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from lmkcli.errors import CheckFailed, UsageError
from lmkcli.progress import Report
from lmkcli.settings import Flag, ModelSettings
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result
from lmkcli.text.numbers import size

SAMPLE = 100  # documents


@dataclass(frozen=True)
class VerifiedVectors(Result):
    """How far the vectors of a sample differ from new ones; `worst` is the most different document's id."""

    vectors: Path
    documents: int
    cosine: float
    difference: float
    tolerance: float
    worst: str

    def as_json(self) -> Any:
        """The facts without the worst document."""
        return {
            "vectors": str(self.vectors),
            "documents": self.documents,
            "least cosine": self.cosine,
            "largest difference": self.difference,
            "tolerance": self.tolerance,
        }

    def __str__(self) -> str:
        return (
            f"{self.vectors}: {self.documents} documents encoded again, least cosine {self.cosine:.6f} "
            f"(at least {self.tolerance} wanted), largest difference {self.difference:.2g}"
        )

    @property
    def failure(self) -> CheckFailed | None:
        """The error if a vector differs by more than the tolerance."""
        if self.cosine >= self.tolerance:
            return None
        return CheckFailed(
            f"{self.vectors}: the vector of document {self.worst} differs (cosine {self.cosine:.6f})"
        )


@dataclass(frozen=True)
class VerifiedIndex(Result):
    """The files of an index, all with the recorded digests."""

    index: Path
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.index}: {self.files} files are unchanged, {size(self.bytes)}"


@dataclass(frozen=True)
class Verify(Operation[VerifiedVectors | VerifiedIndex], ModelSettings):
    """Encode a sample of the stored texts again and compare with the stored vectors; exit 4 if they differ.

    The least cosine must be 0.99999 where fp32 was computed and 0.999 where bf16 or fp16 was. The files of
    an index are read, and compared with the digests that they were written with.
    """

    verb: ClassVar[str] = "verify"
    unused: ClassVar[tuple[str, ...]] = ("dtype",)

    folder: Annotated[
        Path,
        Flag("A vectors folder, or an index.", argument=True, metavar="FOLDER", role="artifact"),
    ]
    sample: Annotated[
        int | None,
        Flag("Documents to encode again, spread over the folder.", min=1, shown=str(SAMPLE)),
    ] = None

    def execute(self, report: Report) -> VerifiedVectors | VerifiedIndex:
        """Verify the vectors or the index."""
        from lmkcli import manifest

        if manifest.read(self.folder).kind == "index":
            return self._index()
        from lmkcli.encoding.verifying import verify

        found = verify(self.folder, self.sample or SAMPLE, self.part(ModelSettings))
        return VerifiedVectors(
            self.folder,
            found.documents,
            found.cosine,
            found.difference,
            found.tolerance,
            found.worst,
        )

    def _index(self) -> VerifiedIndex:
        from lmkcli import catalog, manifest
        from lmkcli.retrieval.index_folder import check_files

        given = self.changed() & {"sample", *(field.name for field in fields(ModelSettings))}
        if given:
            raise UsageError(
                f"{self.folder} is an index: its files are read and no text is encoded, so --sample and "
                "flags of the model have no effect; drop them"
            )
        if manifest.read(self.folder).identity["family"] in catalog.DATABASES:
            raise UsageError(
                f"the vectors of {self.folder} are in a database, and there are no files to read; each lmk "
                "search checks what it holds"
            )
        files = check_files(self.folder)
        return VerifiedIndex(self.folder, len(files), sum(file.size for file in files))
