"""Any dataset of the Hugging Face hub, streamed with the library datasets: 'hf:owner/name,split=train'.

A folder with the files of a dataset is read in the same way: 'hf:./folder'. Nothing is stored on this
machine, unless `lmk fetch` downloads the repository. No script of a repository runs.

A dataset has configurations and splits. A repository with the configurations `corpus` and `queries`, as MTEB
writes them, is a whole collection: its judgements are in `qrels` or `default`. Any other repository is one
table: its rows are documents, queries or training examples, as the command needs.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import datasets
from huggingface_hub import HfApi, get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    HFValidationError,
    LocalEntryNotFoundError,
)

from lmkcli.data import known_collections
from lmkcli.data.collection import (
    WHOLE,
    Collection,
    CountedDocs,
    DocStream,
    Qrel,
    Query,
    Shard,
    check_options,
    spell,
)
from lmkcli.data.columns import ROW, SAMPLE, Typed, check_numbering, query_columns
from lmkcli.data.fields import (
    CHUNKS,
    ID_FIELDS,
    QUERY_ID_FIELDS,
    QUERY_TEXT_FIELDS,
    Fields,
    Record,
)
from lmkcli.data.hub_layouts import MIRROR, mirror
from lmkcli.data.qrels import read_qrels
from lmkcli.data.records import BLOCK
from lmkcli.data.sources.file_collections import open_files
from lmkcli.errors import DataError, LmkError, UsageError
from lmkcli.system import network
from lmkcli.system.caches import cached_commits
from lmkcli.system.input_files import not_a_file
from lmkcli.text.formatting import listed, shell_line

COLUMNS = ("id", "title", "text", "fields")  # options that name columns
OPTIONS = (*COLUMNS, "config", "split", "revision", "map_ids", "queries", "qrels")
CORPUS, QUERIES = "corpus", "queries"  # configurations of a whole collection
QRELS = ("qrels", "default")
DEFAULT_SPLIT = "test"  # of judgements
JUDGED = (("query-id", "query_id", "qid"), ("corpus-id", "corpus_id", "doc_id", "docid"))
Result = TypeVar("Result")


def open_dataset(name: str, options: dict[str, str]) -> "HubDataset":
    """Open 'hf:owner/name' or 'hf:./folder'. Reads and downloads nothing yet.

    Options: `config`, `split` and `revision` of the dataset, `id`, `title` and `text` (columns; those of the
    text joined by '+'), `map_ids` (1: white space in ids becomes '_'), `queries` and `qrels` (files).
    """
    check_options(name, options, OPTIONS)
    given = dict(options)
    for key in {"queries", "qrels"} & options.keys():
        file = Path(os.path.abspath(os.path.expanduser(options[key])))
        if not file.is_file():
            raise DataError(f"{key}={options[key]}: {not_a_file(file) or 'no such file'}")
        given[key] = str(file)
    place = name.removeprefix("hf:")
    if place.startswith((".", "/", "~")):
        folder = Path(os.path.abspath(os.path.expanduser(place)))
        if not folder.is_dir():
            raise DataError(f"{name}: no such folder")
        if "revision" in options:
            raise UsageError(f"{name}: a folder has no revision; drop revision=")
        place = str(folder)
    return HubDataset(place, given)


class Place(NamedTuple):
    """The folder or the repository that the library reads."""

    path: str
    commit: str
    """'' for a folder that may change."""
    repo: str

    @property
    def label(self) -> str:
        """The name of the place in manifests: 'owner/name@commit', or the folder."""
        return f"{self.repo}@{self.commit}" if self.commit else self.repo


class Rows(NamedTuple):
    """The rows of a split: their columns, their number if known, and the files that contain them."""

    stream: Any  # datasets.IterableDataset
    label: str
    columns: list[str]
    total: int | None
    files: list[str]
    size: int
    """The size in bytes; 0 if unknown."""


class HubDataset(Collection):
    """The rows of a dataset as documents, queries or training examples; or a whole collection.

    A row without an id has its number in the split as its id, counted from 1 as in files; so have all rows
    with `id=row`. A shard reads whole files if there are enough files (or row groups of parquet files);
    otherwise lmk deals the rows to the shards in blocks of 1,000. Numbered rows are always dealt.
    """

    def __init__(self, place: str, options: dict[str, str]) -> None:
        self.name = spell(f"hf:{place}", options)
        self._given = place
        self._options = options
        self._fields = Fields.parse(
            {k: v for k, v in options.items() if k in (*COLUMNS, "map_ids")}
        )

    @property
    def settings(self) -> dict[str, str]:  # type: ignore[override]
        """The settings of the fields; with the ids, if they are row numbers."""
        numbered = {"id": ROW} if self._is_numbered(self._docs_rows, ID_FIELDS) else {}
        return self._fields.settings | numbered

    def docs(self, shard: Shard = WHOLE) -> DocStream:
        rows = self._docs_rows
        self._check_columns(rows)
        total = None if rows.total is None else -(-rows.total // shard.count)
        return CountedDocs(
            lambda: (
                self._fields.doc(record, where)
                for where, record in self._records(rows, self._fields.known, ID_FIELDS, shard)
            ),
            total,
        )

    def queries(self) -> Iterator[Query]:
        """Return the queries: of the file `queries`, of the configuration of that name, or all rows."""
        if path := self._options.get("queries"):
            return open_files(path, self._mapped).queries()
        rows = self._rows(QUERIES) if self._is_collection else self._docs_rows
        fields = Fields.parse(self._mapped) if self._is_collection else self._fields
        if not (
            set(QUERY_ID_FIELDS) & set(rows.columns) and set(QUERY_TEXT_FIELDS) & set(rows.columns)
        ):
            sample = [record for _, record in islice(self._records(rows, None, None), SAMPLE)]
            fields = query_columns(sample, fields, Typed(self.name, {}))
        ids = QUERY_ID_FIELDS if fields.id_name in ("", ROW) else (fields.id_name,)
        records = self._records(rows, fields.known, ids)
        return (fields.query(record, where) for where, record in records)

    @property
    def _mapped(self) -> dict[str, str]:
        """The option of ids, for queries whose columns no option names."""
        return {"map_ids": self._options["map_ids"]} if "map_ids" in self._options else {}

    def qrels(self) -> Iterator[Qrel]:
        if path := self._options.get("qrels"):
            return read_qrels(path, self._fields.map_ids)
        if not self.has_qrels():
            raise DataError(f"{self.name}: no judgements; name a file with ',qrels=path'")
        return self._judgements()

    def has_qrels(self) -> bool:
        return "qrels" in self._options or (self._is_collection and bool(self._judged_config))

    def records(self) -> Iterator[tuple[str, Record]] | None:
        return None if self.has_qrels() else self._records(self._docs_rows, None, None)

    def file_stats(self) -> dict[str, list[int]]:
        """Like `Collection.file_stats`: each file of a folder, or the commit and its split."""
        rows, place = self._docs_rows, self._place
        if place.commit:
            return {f"{place.label}/{rows.label}": [rows.size]}
        found = {os.path.relpath(path, place.path): os.stat(path) for path in rows.files}
        return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in sorted(found.items())}

    def can_move(self) -> bool:
        """Yes: all rows are in files."""
        return True

    def fetch(self) -> None:
        """Download the repository into the cache of the hub, with all configurations."""
        if self._place.path == self._given and self._place.commit:
            self._ask(
                lambda: snapshot_download(self._given, repo_type="dataset", revision=self._revision)
            )

    # --- the place, the configurations and the splits ---

    @property
    def _revision(self) -> str | None:
        return self._options.get("revision")

    @cached_property
    def _place(self) -> Place:
        """The folder, the mirror, the fetched copy, or the commit on the hub."""
        folder = Path(self._given) if os.path.isabs(self._given) else mirror(self._given)
        if folder:
            return Place(
                str(folder), "", str(folder) if os.path.isabs(self._given) else self._given
            )
        if fetched := self._fetched():
            return Place(str(fetched), fetched.name, self._given)
        if network.forbidden():
            commits = [] if self._revision else cached_commits(self._given, "dataset")
            if commits:
                chosen = spell(f"hf:{self._given}", self._options | {"revision": commits[0]})
                raise DataError(
                    f"hf:{self._given}: the hub's cache has the commit {commits[0]}, but not which commit is "
                    f"main; choose it: {shell_line(chosen)}"
                )
            raise DataError(
                f"hf:{self._given} is not in the hub's cache, and an offline job does not download it. "
                f"Run lmk fetch {shell_line(self.name)} once, on a machine with a network, or name a mirror "
                f"folder in {MIRROR}"
            )
        info = self._ask(lambda: HfApi().dataset_info(self._given, revision=self._revision))
        return Place(self._given, info.sha or "", self._given)

    def _fetched(self) -> Path | None:
        """Return the folder of a repository that `lmk fetch` downloaded completely. Sends no request."""
        try:
            folder = snapshot_download(
                self._given, repo_type="dataset", revision=self._revision, local_files_only=True
            )
            # Without a list of its files, a copy might be incomplete.
            commit = os.path.basename(folder)
            get_cached_repo_tree(self._given, repo_type="dataset", revision=commit)
        except (LocalEntryNotFoundError, CachedRepoTreeNotFoundError, HFValidationError):
            return None
        return Path(folder)

    @cached_property
    def _configs(self) -> list[str]:
        """The names of all configurations."""
        path, commit = self._source
        names = self._ask(lambda: datasets.get_dataset_config_names(path, revision=commit))
        config = self._options.get("config")
        if config is not None and config not in names:
            raise UsageError(
                f"hf:{self._given} has no configuration '{config}'; it has {listed(names)}"
            )
        return list(names)

    @property
    def _source(self) -> tuple[str, str | None]:
        """Path and revision for the library; it reads a fetched copy as a folder."""
        place = self._place
        return place.path, place.commit if place.path == self._given and place.commit else None

    @property
    def _is_collection(self) -> bool:
        """Whether the repository has tables of documents and of queries, and no option selects one."""
        return "config" not in self._options and {CORPUS, QUERIES} <= set(self._configs)

    @cached_property
    def _judged_config(self) -> str:
        """The configuration of the judgements; '' if the repository has none."""
        return next((name for name in QRELS if name in self._configs), "")

    @cached_property
    def _docs_rows(self) -> Rows:
        return self._rows(CORPUS) if self._is_collection else self._rows("", self._chosen_split)

    @property
    def _chosen_split(self) -> str:
        return self._options.get("split", "")

    def _rows(self, config: str, split: str = "") -> Rows:
        """Open a split of a configuration. Raises UsageError with the choices if one is not chosen."""
        several = len(self._configs) > 1
        config = config or self._options.get("config", "") or self._default_config()
        path, commit = self._source
        builder = self._ask(lambda: datasets.load_dataset_builder(path, config, revision=commit))
        # Batches of a fixed size take constant memory, also for large row groups.
        if hasattr(builder.config, "batch_size"):
            builder.config.batch_size = BLOCK
        splits = self._ask(builder.as_streaming_dataset)
        if not split and len(splits) > 1:
            raise UsageError(
                f"{self.name} has the splits {listed(splits)}; add one: ,split={next(iter(splits))}"
            )
        chosen = list(splits) if split == "all" else split.split("+") if split else list(splits)
        if unknown := [name for name in chosen if name not in splits]:
            raise UsageError(
                f"hf:{self._given}{f',config={config}' if several else ''} has no split "
                f"'{unknown[0]}'; it has {listed(splits)} (or join them: split=a+b, split=all)"
            )
        stream = self._ask(lambda: builder.as_streaming_dataset("+".join(chosen)))
        facts = [(builder.info.splits or {}).get(name) for name in chosen]
        counts = [each.num_examples if each else 0 for each in facts]
        files = builder.config.data_files or {}
        return Rows(
            stream,
            f"{config}/{'+'.join(chosen)}",
            self._columns(stream),
            sum(counts) if all(counts) else None,
            [str(file) for name in chosen for file in files.get(name, ())],
            sum(each.num_bytes or 0 if each else 0 for each in facts),
        )

    def _default_config(self) -> str:
        if len(self._configs) == 1:
            return self._configs[0]
        path, commit = self._source
        default = self._ask(lambda: datasets.get_dataset_default_config_name(path, revision=commit))
        if default is None:
            raise UsageError(
                f"{self.name} has the configurations {listed(self._configs)}; add one: "
                f",config={self._configs[0]}"
            )
        return str(default)

    def _columns(self, stream: Any) -> list[str]:
        """Return the names of the columns; from the first row, if the files do not declare them."""
        if stream.column_names:
            return list(stream.column_names)
        first: Record = self._ask(lambda: next(iter(stream), {}))
        return list(first)

    # --- the rows ---

    def _check_columns(self, rows: Rows) -> None:
        """Raise UsageError with the existing columns if a chosen column, or any text column, is missing."""
        fields, names = self._fields, rows.columns
        id_name = "" if self._is_numbered(rows, ID_FIELDS) else fields.id_name
        chosen = (id_name, fields.title_name, *fields.names)
        missing = [
            name for name in filter(None, chosen) if not {name, name.partition(".")[0]} & set(names)
        ]
        if missing:
            what = f"has no column '{missing[0]}'"
        elif not fields.names and not {CHUNKS, *fields.texts} & set(names):
            what = f"has no column {' or '.join(fields.texts)}; name those of the text: ,text=a+b"
        elif self._is_numbered(rows, ID_FIELDS) and not fields.id_name:
            check_numbering(names, Typed(f"hf:{self._given}", self._options))
            return
        else:
            return
        raise UsageError(f"{self.name} {what}; its columns are {listed(names)}")

    def _is_numbered(self, rows: Rows, usual: tuple[str, ...]) -> bool:
        """Return whether the numbers of the rows are their ids."""
        if self._fields.id_name == ROW:
            return ROW not in rows.columns
        return not self._fields.id_name and not set(usual) & set(rows.columns)

    def _records(
        self,
        rows: Rows,
        wanted: frozenset[str] | None,
        ids: tuple[str, ...] | None,
        shard: Shard = WHOLE,
    ) -> Iterator[tuple[str, Record]]:
        """Yield the rows of a shard with their places; `wanted` are the columns to read,
        `ids` those of ids.
        """
        numbered = ids is not None and self._is_numbered(rows, ids)
        stream, dealt = rows.stream, shard.count > 1
        columns = [name for name in rows.columns if wanted is None or name in wanted]
        if len(columns) > (0 if numbered else 1):  # else an error will list all columns
            stream = stream.select_columns(columns)
        if dealt and not numbered:
            if stream.num_shards < shard.count:
                stream = self._ask(stream.reshard)
            if stream.num_shards >= shard.count:
                stream, dealt = stream.shard(shard.count, shard.number), False
        part = (
            f" of shard {shard.number + 1}/{shard.count}" if shard.count > 1 and not dealt else ""
        )
        iterator = iter(stream)
        number = 0
        while (record := self._ask(lambda: next(iterator, None))) is not None:
            if not dealt or (number // BLOCK) % shard.count == shard.number:
                where = f"{self._place.label}/{rows.label} row {number + 1}{part}"
                name = {"_id": str(number + 1), ROW: number + 1} if numbered else {}
                yield where, {**name, **record}
            number += 1

    def _judgements(self) -> Iterator[Qrel]:
        split = self._chosen_split
        rows = self._rows(self._judged_config, split or self._judged_split())
        for where, record in self._records(rows, None, None):
            query, doc = (next((n for n in names if n in record), None) for names in JUDGED)
            if query is None or doc is None:
                raise DataError(
                    f"{where}: expected the columns query-id and corpus-id; found {listed(record)}"
                )
            try:
                grade = int(record.get("score", 1))
            except (TypeError, ValueError):
                raise DataError(
                    f"{where}: the grade {record['score']!r} is not a whole number"
                ) from None
            yield Qrel(
                self._fields.id(record[query], where, "query"),
                self._fields.id(record[doc], where, "document"),
                grade,
            )

    def _judged_split(self) -> str:
        """Return the split of the judgements: test if it exists, otherwise the only one."""
        path, commit = self._source
        names = self._ask(
            lambda: datasets.get_dataset_split_names(path, self._judged_config, revision=commit)
        )
        return DEFAULT_SPLIT if DEFAULT_SPLIT in names else ""

    def _ask(self, question: Callable[[], Result]) -> Result:
        """Return the answer of the library. Raises its errors, which have many classes, as DataError."""
        with self._errors():
            return question()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with _quiet():
            try:
                yield
            except LmkError:
                raise
            except Exception as error:
                raise DataError(self._explained(error)) from error

    def _explained(self, error: Exception) -> str:
        """Return what is wrong, and what to do."""
        text = " ".join(str(error).split())[:300]
        what = f"hf:{self._given}: it cannot be read ({type(error).__name__}: {text})"
        if "script" in text:
            advice = (
                "lmk runs no script of a dataset. Most such repositories have a copy in parquet: "
                "add ,revision=refs/convert/parquet"
            )
        elif os.path.isabs(self._given) or mirror(self._given):
            advice = "Check the files of the folder"
        else:
            near = known_collections.similar_names(self._given)
            advice = (
                "Check the name at https://huggingface.co/datasets, and the network; gated repositories "
                f"need an account (hf auth login); known collections are {', '.join(near[:3])} … "
                "(lmk show sources)"
            )
        return f"{what}. {advice}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the messages of the library: lmk raises its errors."""
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
