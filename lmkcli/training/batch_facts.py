"""Batch facts: groups, teacher scores and excluded pairs of the passages of a batch.

Passages are ordered by query, and the positive of each query comes first. Each process holds a contiguous
slice of the batch, so concatenating the slices in process order restores the whole batch.
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
    """Return the groups, teacher scores and excluded pairs of a whole batch.

    A pair of a query and a passage of another query is excluded in these cases:
    - The passage's text answers this query too.
    - The passage's text is also among this query's own passages.
    - The passage's text occurs earlier in the batch.
    - `across` is False and the other query comes from another source.
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
    """Return the pairs with a passage text that answers the query or is repeated, [Q, N] bool.

    Pairs of a query and its own passages may be True here; the caller clears them. The N text numbers are
    sorted once, so that the texts of each query can be found by binary search.
    """
    columns = np.concatenate(
        [each.passages for each in drawn]
    )  # [N]: the text number of each passage
    order = np.argsort(columns, kind="stable")
    ordered = columns[order]
    repeated = np.zeros(len(columns), bool)
    repeated[order[1:]] = ordered[1:] == ordered[:-1]
    excluded = np.tile(repeated, (len(drawn), 1))
    answers = [np.append(each.passages, examples.answers(each.query)) for each in drawn]
    rows = np.concatenate(answers)
    starts = np.searchsorted(ordered, rows, "left")
    counts = np.searchsorted(ordered, rows, "right") - starts
    queries = np.repeat(np.arange(len(drawn)), [len(each) for each in answers])
    excluded[np.repeat(queries, counts), order[ranges(starts, counts)]] = True
    return excluded
