"""Packs: which placed sequences go through the model together, under a budget of positions."""

from collections.abc import Sequence


def packs(lengths: Sequence[int], tokens: int, size: int, padded: bool) -> list[list[int]]:
    """Sequence numbers in packs, longest first, so that a pack holds like lengths.

    A pack has at most `tokens` positions (counted with padding when `padded`) and `size` sequences;
    a sequence that is longer than the budget makes a pack by itself. Longest first, because what does
    not fit into memory should say so at the start.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    packed: list[list[int]] = []
    room = 0
    for number in order:
        longest = lengths[packed[-1][0]] if packed else 0
        cost = longest if padded else lengths[number]
        if not packed or cost > room or len(packed[-1]) >= size:
            packed.append([])
            room, cost = tokens, lengths[number]
        packed[-1].append(number)
        room -= cost
    return packed
