"""Building in shards: what an index learns is learned once, each task adds its documents to lists of its
own, and the lists are joined on disk to the index that one process builds.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lmkcli.data.collection import Shard
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.retrieval.building import build_dense, built_of, claim_dense
from lmkcli.retrieval.index_folder import read_built, write_built
from lmkcli.retrieval.kinds import Share, ann_kind, family_of
from lmkcli.retrieval.numbering import number
from lmkcli.retrieval.views import flat
from lmkcli.settings import AnnSettings
from lmkcli.store.outputs import rollback_on_error
from lmkcli.store.shards import Shards, beside
from lmkcli.store.vectors import Vectors

TRAINED, LISTS = "trained.index", "faiss.index"


def build_shard(
    vectors: Vectors, folder: Path, settings: AnnSettings, shard: Shard, report: Report = Report()
) -> Shards:
    """One shard of the index that `folder` will be; returns all that are there. A finished one is kept.

    The first task trains, and the others wait for it. UsageError for a kind that is built whole, Mismatch
    where shards of something else are there.
    """
    kind, whole = ann_kind(family_of(settings.kind)), flat(vectors)
    kind.check_joinable(whole, settings)
    identity = _identity(vectors, settings)
    shards = Shards.claim(folder, identity, shard.count, [LISTS], report.call)
    trained = shards.once(TRAINED, lambda path: kind.train(whole, path, settings), report.note)
    path = shards.path(shard.number, LISTS)
    if not path.exists():
        rows = shard.rows(vectors.rows)
        first = rows.start if vectors.single else int(vectors.starts[rows.start])
        share = Share(flat(vectors.share(rows)), first)
        kind.build_shard(share, trained, path, settings, report.progress)
    return shards


def find_shards(vectors: Vectors, folder: Path, settings: AnnSettings) -> Shards | None:
    """The shards of an index, where some were begun; Mismatch where they are those of another one."""
    return Shards.find(folder, _identity(vectors, settings))


def join_shards(
    vectors: Vectors,
    folder: Path,
    settings: AnnSettings,
    apart: bool = False,
    report: Report = Report(),
) -> dict[str, Any]:
    """Join shards to the index of all vectors; returns its facts. DataError where they are missing.

    `apart`: each stays a file of its own. Mismatch where they are those of another index.
    """
    if not (shards := find_shards(vectors, folder, settings)):
        raise DataError(f"{beside(folder)} is not there: build the shards first")
    if read_built(folder):
        built = build_dense(vectors, folder, settings, report)  # a life before this one joined them
    else:
        shards.check_whole()
        with rollback_on_error(folder):
            claim_dense(vectors, folder, settings, report.call)
            paths = [shards.path(each, LISTS) for each in range(shards.count)]
            kind = ann_kind(family_of(settings.kind))
            facts = kind.join(shards.folder / TRAINED, paths, folder, settings, apart)
            built = write_built(folder, facts, built_of(vectors, number(vectors)), "")
    shards.remove()
    return built


def _identity(vectors: Vectors, settings: AnnSettings) -> dict[str, Any]:
    """What decides the shards of an index."""
    return {
        "settings": asdict(replace(settings, max_memory=0)),  # the machine's, not the index's
        "vectors": vectors.digest(),
    }
