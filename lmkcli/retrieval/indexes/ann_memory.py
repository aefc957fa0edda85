"""How much memory a FAISS index takes while it is built, what fits where it does not, and the disk."""

import shutil
from pathlib import Path
from typing import Any

import faiss

from lmkcli.errors import DataError
from lmkcli.retrieval.indexes.ann_training import sample_size, training_rows
from lmkcli.retrieval.indexes.factories import core_of, lists_for, make_index
from lmkcli.retrieval.kinds import Blocks
from lmkcli.settings import AnnSettings
from lmkcli.system.memory import free_memory

_GROWTH = 1.5  # measured: arrays that double while they grow hold about half as much again
_SMALL_ROW = 45  # bytes a row that short codes take besides, while lists grow (measured with PQ16)


def forecast(index: Any, rows: int) -> int:
    """Bytes that building `index` with so many rows takes at its peak, training sample included."""
    return max(
        sample_bytes(index, rows),
        int(rows * max(_GROWTH * _row_bytes(index), _row_bytes(index) + _SMALL_ROW)),
    )


def sample_bytes(index: Any, rows: int) -> int:
    """Bytes that training takes."""
    return 8 * sample_size(index, rows) * int(index.d)  # twice: FAISS copies what it trains on


def storage_bytes(index: Any) -> int:
    """Bytes in which the searching index keeps one vector."""
    core = core_of(index)
    if isinstance(core, faiss.IndexHNSW):
        core = faiss.downcast_index(core.storage)
    return int(getattr(core, "code_size", 4 * core.d))


def _row_bytes(index: Any) -> int:
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return _row_bytes(index.index)
    if isinstance(index, faiss.IndexRefine):
        return _row_bytes(index.base_index) + _row_bytes(index.refine_index)
    if isinstance(index, faiss.IndexHNSW):
        links: Any = index.hnsw
        return _row_bytes(index.storage) + 4 * int(links.nb_neighbors(0)) + 16
    if isinstance(index, faiss.IndexIVF):
        return int(index.code_size) + 8
    return int(getattr(index, "code_size", 4 * index.d))


def check_memory(index: Any, settings: AnnSettings, blocks: Blocks) -> None:
    """DataError, with the kinds that would fit, where building an empty index would take too much."""
    limit, needed = _limit(settings), forecast(index, blocks.rows)
    if needed <= limit:
        return
    fitting = [kind for kind in _alternatives(blocks) if _forecast_of(kind, blocks) <= limit]
    advice = f"these fit: {', '.join(fitting)}" if fitting else "no kind of index fits"
    raise DataError(
        f"an index of kind {settings.kind} over {blocks.rows} vectors of {blocks.dim} dimensions "
        f"takes about {_size(needed)} to build, and {_size(limit)} may be used; "
        f"{advice}; exact search needs no index and little memory"
    )


def check_fits(what: str, needed: int, settings: AnnSettings, advice: str) -> None:
    """DataError, with advice, where so many bytes are too many."""
    if needed > (limit := _limit(settings)):
        raise DataError(
            f"{what} takes about {_size(needed)}, and {_size(limit)} may be used; {advice}"
        )


def check_disk(shards: list[Path], folder: Path) -> None:
    """DataError where the lists of shards would not fit beside them on the disk of `folder`.

    FAISS maps the file that it writes: on a full disk the process would be killed.
    """
    needed, free = sum(path.stat().st_size for path in shards), shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"joining writes about {_size(needed)}, and {_size(free)} are left on the disk of {folder}; "
            "make room, or leave the shards in files of their own (--apart), which takes none"
        )


def _limit(settings: AnnSettings) -> int:
    return settings.max_memory or free_memory()


def _forecast_of(factory: str, blocks: Blocks) -> int:
    return forecast(make_index(factory, blocks.dim), blocks.rows)


def _alternatives(blocks: Blocks) -> list[str]:
    """Factory strings from the most exact to the smallest, as far as the rows can train them."""
    lists = f"IVF{lists_for(blocks.rows)}"
    kinds = ["HNSW32,Flat", f"{lists},Flat", "HNSW32,SQ8", f"{lists},SQ8"]
    codes = next((m for m in (64, 48, 32, 16, 8, 4, 2, 1) if blocks.dim % m == 0), 1)
    kinds.append(f"OPQ{codes},{lists},PQ{codes}")
    return [kind for kind in kinds if training_rows(make_index(kind, blocks.dim)) <= blocks.rows]


def _size(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"
