"""Verify: encode a sample of stored texts again, or compare the files of an index with their digests."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli.errors import CheckFailed, UsageError
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag, ModelSettings
from lmkcli.text.formatting import counted, size

if TYPE_CHECKING:
    from lmkcli.artifact.kinds import IndexManifest

SAMPLE = 100  # documents


class Verified(Result):
    """The result of a check of stored files. A failed check has the error as `failure`."""

    @property
    def failure(self) -> CheckFailed | None:
        """The error of a failed check, or None."""
        return None


@dataclass(frozen=True)
class VerifiedVectors(Verified):
    """Differences between stored and new vectors of a sample. `worst` is the document with the largest."""

    vectors: Path
    documents: int
    cosine: float
    difference: float
    tolerance: float
    worst: str

    def as_json(self) -> Any:
        """Return the facts without the worst document."""
        return {
            "vectors": str(self.vectors),
            "documents": self.documents,
            "least cosine": self.cosine,
            "largest difference": self.difference,
            "tolerance": self.tolerance,
        }

    def blocks(self) -> Iterator[Table | str]:
        """Yield the counts and the differences."""
        documents = counted(self.documents, "document")
        yield (
            f"{self.vectors}: {documents} encoded again, least cosine {self.cosine:.6f} (required: "
            f"{self.tolerance}), largest difference {self.difference:.2g}"
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
class VerifiedIndex(Verified):
    """The files of an index, all with their recorded digests."""

    index: Path
    files: int
    bytes: int

    def blocks(self) -> Iterator[Table | str]:
        """Yield the number of files and their size."""
        yield f"{self.index}: {counted(self.files, 'file')} unchanged, {size(self.bytes)}"


@dataclass(frozen=True)
class Verify(Operation[Verified], ModelSettings):
    """Encode a sample of the stored texts again and compare with the stored vectors; exit code 4 if they
    differ.

    The cosine of each pair must be at least 0.99999 for vectors computed in fp32, and 0.999 for bf16 and
    fp16. For an index, lmk reads all files and compares them with their recorded digests.
    """

    verb: ClassVar[str] = "verify"
    unused: ClassVar[tuple[str, ...]] = ("dtype",)

    folder: Annotated[
        Path,
        Flag("A vectors folder, or an index.", argument=True, metavar="FOLDER", role="artifact"),
    ]
    sample: Annotated[
        int | None,
        Flag(
            "Number of documents to encode again, spread over the folder.", min=1, shown=str(SAMPLE)
        ),
    ] = None

    def execute(self, report: Report) -> Verified:
        """Verify the vectors or the index."""
        from lmkcli.artifact import manifest
        from lmkcli.artifact.artifact import Artifact
        from lmkcli.artifact.kinds import IndexManifest, VectorsManifest

        made = manifest.read(self.folder, VectorsManifest, IndexManifest)
        if isinstance(made, IndexManifest):
            return self._index(made)
        assert isinstance(made, VectorsManifest)
        from lmkcli.encoding.verification import verify

        found = verify(Artifact(self.folder, made), self.sample or SAMPLE, self.part(ModelSettings))
        return VerifiedVectors(
            self.folder,
            found.documents,
            found.cosine,
            found.difference,
            found.tolerance,
            found.worst,
        )

    def _index(self, described: "IndexManifest") -> VerifiedIndex:
        from lmkcli.artifact.artifact import Artifact
        from lmkcli.retrieval.index_folder import check_files, finished_index

        given = self.changed() & {"sample", *(field.name for field in fields(ModelSettings))}
        if given:
            raise UsageError(
                f"{self.folder} is an index: no text is encoded, so --sample and flags of the model have no "
                "effect; drop them"
            )
        index = finished_index(Artifact(self.folder, described))
        if not index.record.at:
            raise UsageError(
                f"the vectors of {self.folder} are in a database, so there are no files to verify; each lmk "
                "search checks the contents of the database"
            )
        files = check_files(index)
        return VerifiedIndex(self.folder, len(files), sum(file.size for file in files))
