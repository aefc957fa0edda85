"""Which documents of a collection an analysis looks at."""

from collections.abc import Iterator

from lmkcli.data.collection import Collection
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.store.tokens import Tokenize, TokenRow, tokenized


def long_enough(
    collection: Collection, tokenize: Tokenize, wanted: int, least: int, report: Report
) -> Iterator[TokenRow]:
    """The first `wanted` documents of at least `least` content tokens; DataError if there is none."""
    found = 0
    for batch in tokenized(collection.docs(), tokenize):
        for row in batch:
            if len(row.ids) >= least:
                yield row
                found += 1
                report.progress(found, wanted, "documents")
                report.check_stop()
            if found == wanted:
                return
    if not found:
        raise DataError(f"no document of {collection.name} has {least} tokens; lower --min-tokens")
