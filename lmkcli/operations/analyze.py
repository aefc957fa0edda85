"""Analyze: look into models, vectors and collections; a table, and with an output a figure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.progress import Report
from lmkcli.settings import Dtype, Flag, Settings
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table

if TYPE_CHECKING:
    from lmkcli.encoding.resolving import Resolved

_DOCS, _DOTS = 20, 2000  # documents of a collection that are read; dots of a map
_ROWS = 10  # approximate number of rows in a printed table


@dataclass(frozen=True)
class Analysis(Result):
    """The numbers of an analysis, as a short table for people and in full as JSON."""

    columns: list[str]
    rows: list[list[Any]]
    facts: Any

    def as_json(self) -> Any:
        """All numbers; a figure's JSON file has the same."""
        return self.facts

    def table(self) -> Table:
        """A short table."""
        return Table(self.columns, self.rows)


class _Found(NamedTuple):
    """An analysis, how to draw it, what it was made from, and a note about its extent."""

    analysis: Analysis
    draw: Callable[[Path], None]
    made_from: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class SubjectOptions(Settings):
    """What is analysed: the model, the pooling and the documents."""

    panel: ClassVar[str] = "What is looked at"

    models: Annotated[
        list[str] | None,
        Flag(
            "attention: a line for each model, repeat it; landmarks: one; lengths: whose tokens.",
            long="--model",
            short="-m",
            often=True,
            role="model",
            only="attention landmarks lengths",
        ),
    ] = None
    pools: Annotated[
        list[str] | None,
        Flag(
            "attention: a line for each pooler, repeat it; landmarks: one.",
            long="--pool",
            shown="auto, lmk",
            only="attention landmarks",
        ),
    ] = None
    gran: Annotated[
        str | None,
        Flag(
            "attention, landmarks: chunks of so many tokens, sentence or given.",
            only="attention landmarks",
        ),
    ] = None
    max_length: Annotated[
        int | None,
        Flag(
            "attention, landmarks: positions that the model sees.",
            min=1,
            only="attention landmarks",
        ),
    ] = None
    docs: Annotated[
        int | None,
        Flag(
            "How many documents.",
            min=1,
            shown="20; map: 2000",
            often=True,
            only="attention landmarks map",
        ),
    ] = None
    min_tokens: Annotated[
        int,
        Flag(
            "attention, landmarks: only documents of so many tokens.",
            min=1,
            only="attention landmarks",
        ),
    ] = 200
    doc: Annotated[
        str | None,
        Flag("similarity: the document whose chunks are compared.", only="similarity"),
    ] = None
    dtype: Annotated[
        Dtype, Flag("Compute dtype; auto is bf16 where native.", only="attention landmarks")
    ] = "auto"
    device: Annotated[
        str, Flag("auto, cpu, cuda or cuda:1.", role="speed", only="attention landmarks")
    ] = "auto"
    trust_remote_code: Annotated[
        bool,
        Flag(
            "Run code that comes with the model.",
            role="consent",
            only="attention landmarks lengths",
        ),
    ] = False
    offline: Annotated[
        bool,
        Flag(
            "Never use the network (as with HF_HUB_OFFLINE=1).",
            role="mode",
            only="attention landmarks lengths",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class FigureOptions(Settings):
    """What is shown of it, and where."""

    panel: ClassVar[str] = "What is shown"

    layers: Annotated[
        Literal["last", "mean", "each"],
        Flag("attention: of the last layer, the mean of all, or each by itself.", only="attention"),
    ] = "last"
    bins: Annotated[int, Flag("attention: stretches of a document.", min=2, only="attention")] = 20
    by: Annotated[
        str,
        Flag(
            "map: what colours a dot: doc, chunk (its number), or a field of the records.",
            only="map",
        ),
    ] = ""
    method: Annotated[
        Literal["pca", "umap"], Flag("map: pca, or umap (extra umap).", only="map")
    ] = "pca"
    output: Annotated[
        Path | None, Flag("Where the result goes.", short="-o", often=True, role="output")
    ] = None


@dataclass(frozen=True)
class Analyze(Operation[Analysis], FigureOptions, SubjectOptions):
    """Look into models, vectors and collections: a small table, and with -o a figure (extra plot).

    attention: where in a text its pooling tokens look. landmarks: how often a landmark's nearest chunks
    are those beside it. lengths: how long documents are. map: vectors in two dimensions. similarity:
    the chunks of one document against each other. Beside a figure, FIGURE.json has its numbers and
    what it was made from.
    """

    verb: ClassVar[str] = "analyze"

    what: Annotated[
        Literal["attention", "landmarks", "lengths", "map", "similarity"],
        Flag("attention, landmarks, lengths, map or similarity.", argument=True, metavar="WHAT"),
    ] = field()
    source: Annotated[
        str,
        Flag(
            "A collection; map, similarity: a vectors folder.",
            argument=True,
            metavar="INPUT",
            role="collection",
        ),
    ] = field()

    def variant(self) -> tuple[str, str]:
        """The kind of analysis."""
        return self.what, f"lmk analyze {self.what}"

    def execute(self, report: Report) -> Analysis:
        """Compute the numbers, and draw and record the figure if there is an output."""
        if self.output is not None:  # refuse a bad output before any work
            from lmkcli.provenance import figures
            from lmkcli.store import outputs

            catalog.load(catalog.PLOTS, "curve", "plot")
            outputs.check_sidecar(self.output, figures.KIND)
        found = _ANALYSES[self.what](self, report)
        if self.output is not None:
            found.draw(self.output)
            figures.record(self.output, found.made_from, found.analysis.facts, report.call)
            report.note(
                f"the figure is in {self.output}, its numbers and sources in {self.output}.json"
            )
        if found.note:
            report.note(found.note)
        return found.analysis

    def given_models(self) -> list[str]:
        """The models; UsageError if there is none."""
        if not self.models:
            raise UsageError("-m is missing, for instance -m minilm")
        return self.models

    def resolved(self, model: str, pool: str, unit: str) -> "Resolved":
        """The recipe of a model and a pooler; `gran` applies if texts are cut into chunks."""
        from lmkcli.encoding.asking import open_pooler
        from lmkcli.encoding.resolving import resolve
        from lmkcli.recipe import RecipeOptions

        chunked = unit == "chunk" or pool == "auto" or open_pooler(pool).chunked
        options = RecipeOptions(
            model=model, pool=pool, unit=unit, gran=self.gran if chunked else None,
            max_length=self.max_length, trust_remote_code=self.trust_remote_code,
        )  # fmt: skip
        return resolve(options, self.offline)


def _one(flag: str, values: list[str] | None, default: str) -> str:
    """The value of a flag that this analysis takes only once."""
    if values and len(values) > 1:
        raise UsageError(f"{flag} is given {len(values)} times; give it once here")
    return values[0] if values else default


def _attention(ask: Analyze, report: Report) -> _Found:
    """Attention of the marked positions over relative positions, a line for each model and pooler."""
    models, pools = ask.given_models(), ask.pools or ["auto"]
    resolved = [ask.resolved(model, pool, "doc") for model, pool in product(models, pools)]
    from lmkcli.analysis import attending
    from lmkcli.data.collection import open_collection

    layers, bins = ask.layers, ask.bins
    collection = open_collection(ask.source)
    found: dict[str, attending.Profile] = {}
    for name, each in zip(_names(resolved), resolved, strict=True):
        watcher = attending.open_watcher(each, ask.dtype, ask.device)
        for profile in attending.profiles(
            watcher, _rows(ask, report, collection, watcher.tokenizer), layers, bins
        ):
            several = layers == "each"
            found[f"{name} {profile.layer}".strip() if several else name] = profile
    few = range(0, bins, max(1, bins // _ROWS))
    first = next(iter(found.values()))
    rows: list[list[Any]] = [
        [f"{first.points[i].x:.0%}", *(p.points[i].y for p in found.values())] for i in few
    ]
    rows.append(["on special tokens", *(f"{each.special:.1%}" for each in found.values())])
    facts = [
        {"name": name, "layer": each.layer, "special": each.special, "documents": each.documents,
         "tokens": each.tokens, "points": [point._asdict() for point in each.points]}
        for name, each in found.items()
    ]  # fmt: skip
    draw = _drawn("curve", {name: each.points for name, each in found.items()},
                  "relative position in the text", "attention, 1 is an even spread")  # fmt: skip
    made = _made(ask, "attention", recipes=[each.recipe.identity() for each in resolved],
                 layers=layers, bins=bins)  # fmt: skip
    note = f"{first.documents} documents, {first.tokens:,} tokens; bands are 95 % intervals"
    return _Found(Analysis(["position", *found], rows, facts), draw, made, note)


def _landmarks(ask: Analyze, report: Report) -> _Found:
    """Hit@k of the chunks beside a landmark, and of a query's landmark where answers are known."""
    model = _one("-m", ask.given_models(), "")
    pool = _one("--pool", ask.pools, "lmk")
    if ask.gran is None:
        raise UsageError("--gran is missing, for instance --gran 32")
    resolved = ask.resolved(model, pool, "chunk")
    from lmkcli.analysis import locality as analysis
    from lmkcli.data.collection import open_collection
    from lmkcli.settings import EncodeSettings

    collection = open_collection(ask.source)
    settings = EncodeSettings(dtype=ask.dtype, device=ask.device)
    pair = analysis.open_pair(resolved, settings)
    asked = analysis.answers(collection, ask.gran)
    found = analysis.locality(pair, _rows(ask, report, collection, pair.together.tokenizer), asked)
    rows: list[list[Any]] = [
        [k, *(values[number] for values in found.hits.values())]
        for number, k in enumerate(found.depths)
    ]
    lines = {
        name: list(zip(map(float, found.depths), values, strict=True))
        for name, values in found.hits.items()
    }
    draw = _drawn("curve", lines, "k", "Hit@k")
    made = _made(ask, "landmarks", recipe=resolved.recipe.identity())
    note = f"{found.documents} documents, {found.landmarks:,} landmarks with a chunk on either side"
    note += f"; answer: {found.queries} queries" if found.queries else ""
    return _Found(Analysis(["k", *found.hits], rows, found._asdict()), draw, made, note)


def _lengths(ask: Analyze, report: Report) -> _Found:
    """A histogram over lengths that double, in tokens of a model or in words."""
    from lmkcli.data.collection import open_collection

    tokenizer: Any = None
    if ask.models:
        from lmkcli.models.tokenizer import open_tokenizer

        resolved = ask.resolved(_one("-m", ask.given_models(), ""), "auto", "doc")
        tokenizer = open_tokenizer(resolved.folder, resolved.recipe.doc)
    from lmkcli.analysis import lengths as analysis

    with report.job("lengths") as job:
        found = analysis.lengths(open_collection(ask.source), tokenizer, job)
    bins = list(zip(found.edges, found.edges[1:], found.shares, strict=False))
    rows: list[list[Any]] = [[f"{a:,} to {b:,}", f"{share:.1%}"] for a, b, share in bins]
    rows += [["documents", found.documents], ["mean", round(found.mean)]]
    rows += [[name, value] for name, value in found.quantiles.items()]
    labels = (f"length of a document ({found.what})", "documents")
    draw = _drawn("histogram", found.edges, found.shares, labels)
    made = _made(ask, "lengths", tokenizer=tokenizer and resolved.recipe.doc.tokenizer)
    return _Found(Analysis([found.what, "documents"], rows, found._asdict()), draw, made)


def _vector_map(ask: Analyze, report: Report) -> _Found:
    """Vectors in two dimensions, coloured by a field."""
    from lmkcli.analysis import mapping
    from lmkcli.store.vectors import Vectors

    vectors = Vectors(Path(ask.source))
    by = ask.by
    found = mapping.make_map(vectors, ask.docs or _DOTS, ask.method, by)
    labels = (*found.axes, by)
    draw = _drawn("scatter", found.places, found.values, labels)
    facts = [
        {"id": doc, "chunk": chunk, "x": float(x), "y": float(y), "value": value}
        for doc, chunk, (x, y), value in zip(
            found.docs, found.chunks, found.places, found.values, strict=True
        )
    ]
    rows = list(_centres(found, by))
    made = _made(ask, "map", vectors=vectors.digest())
    return _Found(Analysis([by or "all", "vectors", *found.axes], rows, facts), draw, made)


def _similarity(ask: Analyze, report: Report) -> _Found:
    """The cosines between the chunks of a document."""
    if ask.doc is None:
        raise UsageError("--doc is missing: the id of a document, as lmk search prints it")
    from lmkcli.analysis import mapping
    from lmkcli.store.vectors import Vectors

    vectors = Vectors(Path(ask.source))
    found = mapping.similarity(vectors, ask.doc)
    rows = list(_neighbours(found))
    draw = _drawn("heatmap", found.cosines, ("chunk", "cosine"))
    facts = {"doc": ask.doc, "spans": found.spans, "cosines": found.cosines.tolist()}
    made = _made(ask, "similarity", vectors=vectors.digest(), doc=ask.doc)
    columns = ["chunk", "characters", "to the next", "to all others", "nearest"]
    return _Found(Analysis(columns, rows, facts), draw, made)


_ANALYSES: dict[str, Callable[[Analyze, Report], _Found]] = {
    "attention": _attention,
    "landmarks": _landmarks,
    "lengths": _lengths,
    "map": _vector_map,
    "similarity": _similarity,
}


def _rows(ask: Analyze, report: Report, collection: Any, tokenizer: Any) -> Iterator[Any]:
    """The documents to analyse: the first that are long enough."""
    from lmkcli.analysis.documents import long_enough

    with report.job("analyze") as job:
        yield from long_enough(collection, tokenizer, ask.docs or _DOCS, ask.min_tokens, job)


def _names(resolved: "list[Resolved]") -> list[str]:
    """What tells each recipe from the others: its model, its pooler, or both."""
    models = [each.folder.name for each in resolved]
    pools = [each.recipe.doc.pool for each in resolved]
    if len(set(models)) == 1:
        return pools
    if len(set(pools)) == 1:
        return models
    return [f"{model} {pool}" for model, pool in zip(models, pools, strict=True)]


def _drawn(name: str, *what: Any) -> Callable[[Path], None]:
    return lambda path: catalog.load(catalog.PLOTS, name, "plot")(*what, path)


def _made(ask: Analyze, what: str, **more: Any) -> dict[str, Any]:
    return {"analysis": what, "source": ask.source, **more}


def _centres(found: Any, by: str) -> Iterator[list[Any]]:
    """For each value, the most frequent first: how many vectors, and the mean of their places."""
    import numpy as np

    if by and all(isinstance(value, float) for value in found.values):
        values = np.array(found.values)
        correlations = [
            float(np.corrcoef(values, axis)[0, 1]) if np.ptp(values) and np.ptp(axis) else None
            for axis in found.places.T
        ]
        yield ["correlation with it", len(values), *correlations]
        return
    names, counts = np.unique(np.array(found.values), return_counts=True)
    for number in np.argsort(-counts, kind="stable")[:_ROWS]:
        mine = found.places[np.array(found.values) == names[number]]
        yield [str(names[number]) or "all", int(counts[number]), *mine.mean(0).tolist()]


def _neighbours(found: Any) -> Iterator[list[Any]]:
    import numpy as np

    square, count = found.cosines, len(found.cosines)
    others = square - 2 * np.eye(count)
    for chunk in range(count):
        begin, end = found.spans[chunk] if found.spans else (0, 0)
        following = float(square[chunk, chunk + 1]) if chunk + 1 < count else None
        mean = float((square[chunk].sum() - square[chunk, chunk]) / (count - 1))
        yield [chunk, f"{begin:,}\u2013{end:,}", following, mean, int(others[chunk].argmax())]
