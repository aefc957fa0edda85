"""The poolers lmk and multicls: a special token for every chunk (arXiv 2601.21525 §4, Algorithms 1 and 2).

Landmarks count towards the length limit, so an input is never longer than without landmarks. With landmarks
S and chunks of g tokens, an input of `limit` positions contains

    prefix  c_1 … c_g  S  c_{g+1} … c_{2g}  S  …

that is (limit - prefix) // (g + 1) complete chunks with their landmarks.
"""

from dataclasses import dataclass

import numpy as np

from lmkcli.errors import UsageError
from lmkcli.pooling.block_placement import ArrangedBlock, WindowBlock
from lmkcli.pooling.placement import SHARED, Arrangement, Content, PoolerTraits, SpecialTokens
from lmkcli.store.ragged import ranges


@dataclass(frozen=True)
class Landmark:
    """CLS, then the chunks, each followed by a landmark. The landmarks are marked.

    The input is cut to the limit. Tokens after the last landmark have no landmark of their own, but they
    still reach earlier landmarks through attention (except in causal models). If truncation removes all
    landmarks, every position is marked, as in the official evaluation. With `force` a landmark replaces the
    last id instead, as in the official training.
    """

    force: bool = False
    chunked = True
    per = "chunk"
    traits = PoolerTraits(marks_separator=True)

    def for_training(self) -> "Landmark":
        """The same pooler with a landmark in every input (LMK, §4)."""
        return Landmark(force=True)

    def reserved(self, special: SpecialTokens) -> int:
        return len(special.prefix)

    def check(self, special: SpecialTokens) -> None:
        if special.landmark is None:
            raise UsageError(
                "--pool lmk needs a tokenizer with a SEP or EOS token, and this one has neither; try mean"
            )

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        landmark = np.int32(special.landmark or 0)
        head = np.concatenate([np.array(special.prefix, np.int32), content.prompt])
        body = content.ids[:limit]
        ends = content.ends[content.ends <= len(body)]
        ids = np.concatenate([head, np.insert(body, ends, landmark)])[:limit]
        ids = ids.astype(np.int32, copy=False)
        # chunk i ends at content token ends[i], after i earlier landmarks
        marks = (len(head) + ends + np.arange(len(ends))).astype(np.int32)
        marks = marks[marks < limit]
        if len(marks):
            kept = max(len(ids) - len(head) - len(marks), 0)
            return Arrangement(ids, marks, np.arange(len(marks), dtype=np.int32), kept)
        kept = max(len(ids) - len(head), 0)
        if self.force:
            last = len(ids) - 1
            ids[last] = landmark
            zero = np.zeros(1, np.int32)
            return Arrangement(ids, np.array([last], np.int32), zero, max(kept - 1, 0))
        # a prompt that is not averaged has no marks, unless the input contains nothing else
        first = marked_from if marked_from < len(ids) else 0
        marks = np.arange(first, len(ids), dtype=np.int32)
        return Arrangement(ids, marks, np.full(len(marks), SHARED, np.int32), kept)

    def arrange_block(
        self, windows: WindowBlock, special: SpecialTokens, limit: int
    ) -> ArrangedBlock:
        landmark, lead = np.int32(special.landmark or 0), len(special.prefix)
        heads = lead + windows.prompts
        bodies = np.minimum(windows.lengths, limit)
        of_chunks, of_tokens = windows.chunk_windows, windows.token_windows
        whole = windows.ends <= bodies[of_chunks]
        complete = np.bincount(of_chunks[whole], minlength=len(windows))
        lengths = np.minimum(heads + bodies + complete, limit)
        starts = np.cumsum(lengths) - lengths
        ids = np.empty(int(lengths.sum()), np.int32)
        for position, token in enumerate(special.prefix):
            ids[starts + position] = token
        if windows.prompts.any():
            prompts = np.minimum(windows.prompts, limit - lead)
            ids[ranges(starts + lead, prompts)] = windows.ids[
                ranges(windows.prompt_starts, prompts)
            ]
        # token j of chunk i follows i landmarks
        places = heads[of_tokens] + windows.token_numbers + windows.token_chunks
        inside = (windows.token_numbers < bodies[of_tokens]) & (places < limit)
        ids[(starts[of_tokens] + places)[inside]] = windows.content[inside]
        # chunk i ends at content token ends[i], after i earlier landmarks
        marks = heads[of_chunks] + windows.ends + windows.chunk_numbers
        inside = whole & (marks < limit)
        marks, of_marks = marks[inside], of_chunks[inside]
        ids[starts[of_marks] + marks] = landmark
        counts = np.bincount(of_marks, minlength=len(windows))
        owners = ranges(np.zeros_like(counts), counts)
        kept = np.maximum(lengths - heads - counts, 0)
        without = counts == 0
        if not without.any():
            return ArrangedBlock(ids, lengths, marks, owners, counts, kept)
        if self.force:
            first, added = lengths - 1, np.ones_like(lengths)
            ids[(starts + first)[without]] = landmark
            kept[without] = np.maximum(kept[without] - 1, 0)
        else:
            # a prompt that is not averaged has no marks, unless the input contains nothing else
            first = np.where(windows.marked_from < lengths, windows.marked_from, 0)
            added = lengths - first
        total = np.where(without, added, counts)
        mark_starts = np.cumsum(total) - total
        all_marks = np.empty(int(total.sum()), np.int64)
        all_owners = np.full_like(all_marks, 0 if self.force else SHARED)
        places = ranges(mark_starts[~without], counts[~without])
        all_marks[places], all_owners[places] = marks, owners
        places = ranges(mark_starts[without], added[without])
        all_marks[places] = ranges(first[without], added[without])
        return ArrangedBlock(ids, lengths, all_marks, all_owners, total, kept)


@dataclass(frozen=True)
class MultiCls:
    """A CLS before every chunk, and one suffix at the end. The CLS positions are marked."""

    chunked = True
    per = "chunk"

    def reserved(self, special: SpecialTokens) -> int:
        return len(special.suffix)

    def check(self, special: SpecialTokens) -> None:
        if special.cls is None:
            raise UsageError(
                "--pool multicls needs a tokenizer with a CLS or BOS token; try mean or lmk"
            )

    def arrange(
        self, content: Content, special: SpecialTokens, limit: int, marked_from: int
    ) -> Arrangement:
        size = limit - len(special.suffix)
        body = content.ids[:size]
        starts = np.concatenate([np.zeros(1, np.int32), content.ends[:-1]])
        # an empty last chunk starts at the end of the body, if nothing was cut
        starts = starts[starts < len(body) + (len(body) == len(content.ids))]
        joined = np.insert(body, starts, np.int32(special.cls or 0))
        # the prompt follows the first CLS and belongs to the first chunk
        joined = np.concatenate([joined[:1], content.prompt, joined[1:]])[:size]
        marks = (starts + np.arange(len(starts))).astype(np.int32)
        marks[1:] += len(content.prompt)
        marks = marks[marks < size]
        ids = np.concatenate([joined, np.array(special.suffix, np.int32)]).astype(np.int32)
        kept = max(len(joined) - len(content.prompt) - len(marks), 0)
        return Arrangement(ids, marks, np.arange(len(marks), dtype=np.int32), kept)

    def arrange_block(
        self, windows: WindowBlock, special: SpecialTokens, limit: int
    ) -> ArrangedBlock:
        size = limit - len(special.suffix)
        bodies = np.minimum(windows.lengths, size)
        of_chunks, of_tokens = windows.chunk_windows, windows.token_windows
        # an empty last chunk starts at the end of the body, if nothing was cut
        begun = windows.chunk_starts < (bodies + (bodies == windows.lengths))[of_chunks]
        chunks = np.bincount(of_chunks[begun], minlength=len(windows))
        joined = np.minimum(bodies + chunks + windows.prompts, size)
        lengths = joined + len(special.suffix)
        starts = np.cumsum(lengths) - lengths
        ids = np.empty(int(lengths.sum()), np.int32)
        # the prompt follows the first CLS and belongs to the first chunk
        if windows.prompts.any():
            prompts = np.minimum(windows.prompts, size - 1)
            ids[ranges(starts + 1, prompts)] = windows.ids[ranges(windows.prompt_starts, prompts)]
        places = windows.token_numbers + windows.token_chunks + 1 + windows.prompts[of_tokens]
        inside = (windows.token_numbers < bodies[of_tokens]) & (places < size)
        ids[(starts[of_tokens] + places)[inside]] = windows.content[inside]
        later = windows.chunk_numbers > 0
        marks = windows.chunk_starts + windows.chunk_numbers + windows.prompts[of_chunks] * later
        inside = begun & (marks < size)
        marks, of_marks = marks[inside], of_chunks[inside]
        ids[starts[of_marks] + marks] = special.cls or 0
        for position, token in enumerate(special.suffix):
            ids[starts + joined + position] = token
        counts = np.bincount(of_marks, minlength=len(windows))
        kept = np.maximum(joined - windows.prompts - counts, 0)
        owners = ranges(np.zeros_like(counts), counts)
        return ArrangedBlock(ids, lengths, marks, owners, counts, kept)
