"""The layout of model inputs: the ids of each window, and the positions that are marked in it.

An input consists of a prefix, a body and a suffix (special tokens of the tokenizer). The body contains the
lead (the prompt, then the context of a chunk) and the chunks with the tokens that a pooler inserts:

    prefix | B lead chunk 0 A  B chunk 1 A … | suffix      B before, A after a chunk; neither for most poolers

Counted from the start of the body, where b and a are 1 if there is a B or an A:

    token j of the content, in chunk i, is at   j + i * (b + a) + b + lead
    the A of chunk i is at                    end + i * (b + a) + b + lead
    the B of chunk i is at                  start + i * (b + a)     + lead, but the first B precedes the lead

The body is cut to the positions that the limit leaves. So a token is in the input if its place is less than
`size`. Landmarks count towards the limit: an input with landmarks is never longer than one without.

All arrays are flat over the windows of many texts. `starts` are the first positions of the inputs in the
flat ids; `starts[of] + place` is the position of something that belongs to input `of`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lmkcli.pooling.chunks import Chunks, Windows
from lmkcli.pooling.table import Pooler, SpecialTokens
from lmkcli.store.ragged import Longs, interleave, ranges
from lmkcli.store.token_blocks import Ints, TokenBlock

NO_MARKS = np.zeros(0, np.int64)
SHARED = -1  # the owner of a mark that belongs to the whole input and to no chunk


@dataclass(frozen=True)
class Contents:
    """The contents of w windows, each of which becomes an input.

    include_prompt: whether the positions of the prompt can be marked.
    context_ids: the contexts of all windows; contexts: [w], how many tokens each has.
    """

    block: TokenBlock
    chunks: Chunks
    windows: Windows
    include_prompt: bool
    context_ids: Ints
    contexts: Longs

    @cached_property
    def first_tokens(self) -> Longs:
        """The first content token of each window in its text, [w]."""
        return self.chunks.starts[self.windows.first]

    @cached_property
    def lengths(self) -> Longs:
        """The number of content tokens, [w]."""
        return self.chunks.ends[self.windows.stop - 1] - self.first_tokens

    @cached_property
    def prompts(self) -> Longs:
        """The number of tokens of the prompt, [w]."""
        return self.block.prompts[self.windows.texts]

    @cached_property
    def starts(self) -> Longs:
        """The first position of the content in the ids of the block, [w]."""
        return self.block.first_ids[self.windows.texts] + self.first_tokens

    @cached_property
    def counts(self) -> Longs:
        """The number of chunks, [w]."""
        return self.windows.stop - self.windows.first

    @cached_property
    def chunk_windows(self) -> Longs:
        """The window of each chunk, [all chunks of windows]."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def chunk_numbers(self) -> Longs:
        """The number of each chunk in its window, [all chunks of windows]."""
        return ranges(np.zeros_like(self.counts), self.counts)

    @cached_property
    def chunk_bounds(self) -> tuple[Longs, Longs]:
        """The start and the end of each chunk, counted from the first token of its window."""
        selected = self.windows.first[self.chunk_windows] + self.chunk_numbers
        first = self.first_tokens[self.chunk_windows]
        return self.chunks.starts[selected] - first, self.chunks.ends[selected] - first


class InputLayout(NamedTuple):
    """The inputs of w windows.

    ids: [all positions]. lengths: [w], at most the limit.
    marks: [all marks], positions in their input, ascending. counts: [w], the number of marks.
    owners: [all marks], the number of the chunk in its window that each mark belongs to, or SHARED.
    kept: [w], how many content tokens are in each input.
    """

    ids: Ints
    lengths: Longs
    marks: Longs
    counts: Longs
    owners: Longs
    kept: Longs


class _Frame(NamedTuple):
    """The parts of w inputs, and where they start; see the picture above.

    prefix, suffix: special tokens. tokens: the token before or after each chunk, or both. before: whether the
    first of them is before it. separated: whether it is a separator, so that none follows the last chunk.
    size: the positions for the body. lead: [w], prompt and context. total: [w], the body before it is cut.
    bodies, lengths: [w], the positions of the body and of the input. starts, body: [w], the first position of
    the input and of its body in the flat ids.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    tokens: list[int]
    before: int
    separated: bool
    size: int
    lead: Longs
    total: Longs
    bodies: Longs
    lengths: Longs
    starts: Longs
    body: Longs


class _Runs(NamedTuple):
    """Runs of content tokens without a token between them: chunks, or whole windows.

    of: the window. numbers: the number in the window. starts, lengths: the tokens of the run, counted from
    the first token of the window. places: the place of the first token in the body. taken: how many tokens
    are in the input. All are [runs].
    """

    of: Longs
    numbers: Longs
    starts: Longs
    lengths: Longs
    places: Longs
    taken: Longs


class _Inserted(NamedTuple):
    """The inserted tokens that are in an input.

    chunks: the number of the token's chunk over all windows. of, numbers: the window, and the number of the
    chunk in it. places: the place in the body. ids: the token, or all tokens. All are [tokens].
    """

    chunks: Longs
    of: Longs
    numbers: Longs
    places: Longs
    ids: Longs | int


def lay_out(
    pooler: Pooler, special: SpecialTokens, limit: int, contents: Contents, owned: bool
) -> InputLayout:
    """Return the inputs of all windows. Without `owned`, marks that are no inserted tokens are SHARED."""
    frame = _frame(pooler, special, limit, contents)
    runs = _runs(frame, contents)
    inserted = _inserted(frame, contents, runs) if frame.tokens else None
    ids = _special_ids(frame, special, contents)
    at = ranges(frame.body[runs.of] + runs.places, runs.taken)
    ids[at] = contents.block.ids[ranges(contents.starts[runs.of] + runs.starts, runs.taken)]
    kept = runs.taken
    if inserted is not None:
        ids[frame.body[inserted.of] + inserted.places] = inserted.ids
        kept = np.add.reduceat(kept, np.cumsum(contents.counts) - contents.counts)
    hidden = np.zeros_like(frame.lead)
    if not contents.include_prompt and contents.prompts.any():
        hidden = np.where(contents.prompts > 0, len(special.prefix) + contents.prompts, 0)
    if inserted is not None and pooler.marked == "inserted":
        layout = InputLayout(ids, frame.lengths, NO_MARKS, NO_MARKS, NO_MARKS, kept)
        return _mark_tokens(layout, pooler.forced, frame, inserted, hidden)
    step = pooler.k if pooler.marked == "every" else 1
    if pooler.marked == "every":
        first, counts = _steps(frame.lengths, hidden, step)
    else:
        # the first position after a hidden prompt, as in sentence-transformers, unless nothing follows it
        start = np.where(hidden < frame.lengths, hidden, 0) * (pooler.marked == "first")
        counts = np.minimum(np.maximum(frame.lengths - start, 1), pooler.k)
        first = frame.lengths - counts if pooler.marked == "last" else start
    marks = ranges(first, counts) * step
    owners = np.full_like(marks, SHARED)
    if owned and pooler.marked == "every":
        positions = np.repeat(frame.starts, counts) + marks
        owners = _owners(frame, contents, inserted, at, kept)[positions]
    return InputLayout(ids, frame.lengths, marks, counts, owners, kept)


def _frame(pooler: Pooler, special: SpecialTokens, limit: int, contents: Contents) -> _Frame:
    prefix, suffix = pooler.around(special)
    separated = contents.chunks.separated
    tokens = [special.separator or 0] if separated else pooler.inserted(special)
    size = limit - len(prefix) - (0 if special.cuts_suffix else len(suffix))
    lead = contents.prompts + contents.contexts
    total = lead + contents.lengths
    if tokens:
        total = total + contents.counts * len(tokens) - separated
    bodies = np.minimum(total, size)
    lengths = bodies + (len(prefix) + len(suffix))
    if special.cuts_suffix:
        lengths = np.minimum(lengths, limit)
    if pooler.marked != "model":
        lengths = np.maximum(lengths, 1)  # pooling needs a state; the vector of a model needs none
    starts = np.cumsum(lengths) - lengths
    before = int(bool(pooler.before))
    body = starts + len(prefix)
    return _Frame(
        prefix, suffix, tokens, before, separated, size, lead, total, bodies, lengths, starts, body
    )


def _special_ids(frame: _Frame, special: SpecialTokens, contents: Contents) -> Ints:
    """Return the ids with everything but the content and the inserted tokens, which are not yet set."""
    ids = np.empty(int(frame.lengths.sum()), np.int32)
    for position, token in enumerate(frame.prefix):
        ids[frame.starts + position] = token
    for position, token in enumerate(frame.suffix):
        at = frame.body + frame.bodies + position
        ids[at[at < frame.starts + frame.lengths] if special.cuts_suffix else at] = token
    if not frame.prefix and not frame.suffix and not frame.bodies.all():
        filler = special.landmark if special.cls is None else special.cls
        ids[frame.starts[(frame.bodies == 0) & (frame.lengths > 0)]] = filler or 0
    if frame.lead.any():
        first = frame.body + frame.before
        taken = np.minimum(contents.prompts, frame.size - frame.before)
        texts = contents.windows.texts
        ids[ranges(first, taken)] = contents.block.ids[
            ranges(contents.block.starts[texts, 0], taken)
        ]
        ids[ranges(first + contents.prompts, contents.contexts)] = contents.context_ids  # they fit
    return ids


def _runs(frame: _Frame, contents: Contents) -> _Runs:
    if not frame.tokens:
        of, none = np.arange(len(frame.lead)), np.zeros_like(frame.lead)
        return _Runs(
            of,
            none,
            none,
            contents.lengths,
            frame.lead,
            frame.bodies - np.minimum(frame.lead, frame.bodies),
        )
    of, numbers = contents.chunk_windows, contents.chunk_numbers
    starts, ends = contents.chunk_bounds
    lengths = ends - starts
    places = starts + numbers * len(frame.tokens) + (frame.lead + frame.before)[of]
    taken = np.minimum(np.maximum(frame.size - places, 0), lengths)
    return _Runs(of, numbers, starts, lengths, places, taken)


def _inserted(frame: _Frame, contents: Contents, runs: _Runs) -> _Inserted:
    width = len(frame.tokens)
    columns = [runs.places + runs.lengths] * (width - frame.before)
    if frame.before:  # the first one precedes the lead
        columns.insert(0, runs.places - 1 - frame.lead[runs.of] * (runs.numbers == 0))
    places = columns[0] if width == 1 else np.stack(columns, axis=1).reshape(-1)
    inside = places < frame.size
    if frame.separated:
        inside[np.cumsum(contents.counts) - 1] = False
    chunk = found = np.flatnonzero(inside)
    ids: Longs | int = frame.tokens[0]
    if width > 1:
        chunk, column = np.divmod(found, width)
        ids = np.array(frame.tokens)[column]
    return _Inserted(chunk, runs.of[chunk], runs.numbers[chunk], places[found], ids)


def _mark_tokens(
    layout: InputLayout, forced: bool, frame: _Frame, inserted: _Inserted, hidden: Longs
) -> InputLayout:
    """Mark the inserted tokens.

    Content after the last landmark has no landmark of its own, but still reaches earlier landmarks through
    attention (except in causal models). If the cut removes all landmarks of an input, every position is
    marked, as in the official evaluation of LMK. With `forced`, a landmark replaces the last id, as in the
    official training.
    """
    marks, owners = len(frame.prefix) + inserted.places, inserted.numbers
    counts = np.bincount(inserted.of, minlength=len(frame.lead))
    if counts.all():
        return layout._replace(marks=marks, counts=counts, owners=owners)
    without, kept = counts == 0, layout.kept
    if forced:
        first, added, owner = frame.lengths - 1, without.astype(np.int64), 0
        layout.ids[(frame.starts + first)[without]] = frame.tokens[-1]
        kept = np.maximum(kept - without, 0)
    else:
        first, steps = _steps(frame.lengths, hidden, 1)
        added, owner = steps * without, SHARED
    more = ranges(first, added)
    return layout._replace(
        marks=interleave(marks, counts, more, added),
        counts=counts + added,
        owners=interleave(owners, counts, np.full_like(more, owner), added),
        kept=kept,
    )


def _steps(lengths: Longs, hidden: Longs, step: int) -> tuple[Longs, Longs]:
    """Return the number of the first step that is marked, and how many steps are, in each input.

    Steps are the positions 0, step, 2 * step … Without a step after the hidden positions (the input is
    nothing but a prompt), all steps are marked.
    """
    steps = -(-lengths // step)
    first = -(-hidden // step)
    first[first >= steps] = 0
    return first, steps - first


def _owners(
    frame: _Frame, contents: Contents, inserted: _Inserted | None, at: Longs, kept: Longs
) -> Longs:
    """Return the number of the chunk that each position belongs to, or SHARED, [all positions].

    Everything before the content belongs to the first chunk, as in late chunking without a prompt (Günther et
    al., arXiv 2409.04701). Separators and everything after the content belong to no chunk, unless a chunk has
    no other token:

        ids      CLS  a  b  SEP  SEP  c  SEP       chunks: a b, nothing, c
        owners    0   0  0   -    1   2   -
    """
    owners = np.full(int(frame.lengths.sum()), SHARED)
    lead = len(frame.prefix) + frame.lead
    owners[ranges(frame.starts, np.minimum(lead, frame.lengths))] = 0
    starts, ends = contents.chunk_bounds
    taken = np.minimum(ends, kept[contents.chunk_windows]) - starts
    owners[at] = np.repeat(contents.chunk_numbers, np.maximum(taken, 0))
    if inserted is not None:
        alone = (starts == ends)[inserted.chunks]
        places = frame.body[inserted.of] + inserted.places
        owners[places[alone]] = inserted.numbers[alone]
    # an empty last chunk owns the first position of the suffix, if nothing was cut
    last = np.cumsum(contents.counts) - 1
    end = np.maximum(frame.bodies, frame.lead)
    alone = (starts == ends)[last] & (end == frame.total)
    alone &= len(frame.prefix) + end < frame.lengths
    owners[(frame.body + end)[alone]] = (contents.counts - 1)[alone]
    return owners
