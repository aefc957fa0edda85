"""What is known of the passages of a batch together.

Passages lie query by query, the positive first: slices of a batch that were gathered from many processes,
in order, are the batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.store.ragged import ranges
from lmkcli.training.drawing import Drawn
from lmkcli.training.examples import Examples
from lmkcli.training.objective import BatchFacts


def facts(examples: Examples, drawn: Sequence[Drawn], across: bool = True) -> BatchFacts:
    """What is known of a whole batch: its groups, teacher scores and pairs not to be contrasted.

    Those are of a query and a passage that another query brought, when its text answers this query
    too, or is among its own passages, or stands in the batch before; and, unless `across`, when that
    other query is of another source.
    """
    counts = np.array([len(each.passages) for each in drawn])
    present = np.arange(counts.max()) < counts[:, None]
    groups = np.full(present.shape, -1)
    groups[present] = np.arange(counts.sum())
    teacher = np.full(present.shape, np.nan, np.float32)
    teacher[present] = np.concatenate([each.scores for each in drawn])
    excluded = _excluded(examples, drawn)
    owners = np.repeat(np.arange(len(drawn)), counts)
    if not across:
        sources = examples.sources[[each.example for each in drawn]]
        excluded |= sources[:, None] != sources[owners]
    excluded[owners, np.arange(len(owners))] = False
    return BatchFacts(
        torch.from_numpy(groups),
        torch.from_numpy(teacher) if examples.scored else None,
        torch.from_numpy(excluded),
    )


def _excluded(examples: Examples, drawn: Sequence[Drawn]) -> NDArray[np.bool_]:
    """[Q, N]: where the text of a passage answers the query, is its own, or is there before."""
    columns = np.concatenate([each.passages for each in drawn])
    order = np.argsort(columns, kind="stable")
    ordered = columns[order]
    repeated = np.zeros(len(columns), bool)
    repeated[order[1:]] = ordered[1:] == ordered[:-1]
    excluded = np.tile(repeated, (len(drawn), 1))
    theirs = [np.append(each.passages, examples.answers(each.query)) for each in drawn]
    rows = np.concatenate(theirs)
    begins = np.searchsorted(ordered, rows, "left")
    many = np.searchsorted(ordered, rows, "right") - begins
    queries = np.repeat(np.arange(len(drawn)), [len(each) for each in theirs])
    excluded[np.repeat(queries, many), order[ranges(begins, many)]] = True
    return excluded
