"""The command `lmk count`: each field of an operation becomes a flag."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from lmkcli.data.collection import open_collection
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Flag


@dataclass(frozen=True)
class Counted(Result):
    """The number of documents, and of their words if they were counted."""

    documents: int
    words: int | None = None

    def blocks(self) -> Iterator[Table | str]:
        """The numbers on one line."""
        text = f"{self.documents:,} documents"
        yield text if self.words is None else f"{text}, {self.words:,} words"


@dataclass(frozen=True)
class Count(Operation[Counted]):
    """Count the documents of a collection."""

    verb: ClassVar[str] = "count"

    collection: Annotated[
        str, Flag("A collection.", argument=True, metavar="COLLECTION", role="collection")
    ]
    count_words: Annotated[
        bool, Flag("Also count words, separated by white space.", long="--words")
    ] = False

    def execute(self, report: Report) -> Counted:
        """Read the collection once."""
        documents = words = 0
        for doc in open_collection(self.collection).docs():
            documents += 1
            words += len(doc.content.split())
        return Counted(documents, words if self.count_words else None)
