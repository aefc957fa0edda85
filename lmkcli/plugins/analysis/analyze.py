"""Analyze: inspect models, vectors and collections; print a table and, with an output, draw a figure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.operations.options import check_file
from lmkcli.progress import Report
from lmkcli.spec.operation import Operation
from lmkcli.spec.result import Result, Table
from lmkcli.spec.settings import Dtype, Flag, Settings
from lmkcli.spec.values import AUTO, Device, Granularities
from lmkcli.system.atomic import exclusive

if TYPE_CHECKING:
    from lmkcli.encoding.resolution import ResolvedRecipe

_DOCS, _MAP_DOCS = 20, 2000  # default number of documents; of a map
_TABLE_ROWS = 10  # approximate number of rows in a printed table


@dataclass(frozen=True)
class Analysis(Result):
    """The numbers of an analysis: a short table for people, all numbers as JSON."""

    columns: list[str]
    rows: list[list[Any]]
    facts: Any

    def as_json(self) -> Any:
        """Return all numbers, as in the JSON file of a figure."""
        return self.facts

    def as_columns(self) -> Mapping[str, Any]:
        """Return the rows of the short table."""
        return Table(self.columns, self.rows).as_columns()

    def blocks(self) -> Iterator[Table | str]:
        """Yield a short table."""
        yield Table(self.columns, self.rows)


class _Computed(NamedTuple):
    """An analysis with its figure and its provenance."""

    analysis: Analysis
    draw: Callable[[Path], None]
    inputs: Mapping[str, Any]
    note: str = ""  # the number of documents and tokens


@dataclass(frozen=True, kw_only=True)
class SubjectOptions(Settings):
    """The model, the pooling and the documents to analyse."""

    panel: ClassVar[str] = "Subject"

    models: Annotated[
        list[str] | None,
        Flag(
            "The model. attention: repeatable, one line per model; lengths: count its tokens instead "
            "of words.",
            long="--model",
            short="-m",
            often=True,
            role="model",
            only="attention landmarks lengths",
            aliases="--encoder --model-name --model-name-or-path",
        ),
    ] = None
    pools: Annotated[
        list[str] | None,
        Flag(
            "Pooling. attention: repeatable, one line per pooler.",
            long="--pool",
            shown="auto, lmk",
            only="attention landmarks",
            aliases="--pooling --pooler",
        ),
    ] = None
    gran: Annotated[
        Granularities | None,
        Flag(
            "attention, landmarks: granularity, the length of chunks: a number of tokens, 'sentence' "
            "or 'given'.",
            only="attention landmarks",
            aliases="--granularity",
        ),
    ] = None
    max_length: Annotated[
        int | None,
        Flag(
            "attention, landmarks: maximum number of positions of a document.",
            min=1,
            only="attention landmarks",
            aliases="--max-seq-length --max-seq-len",
        ),
    ] = None
    docs: Annotated[
        int | None,
        Flag(
            "Number of documents.",
            min=1,
            shown="20; map: 2000",
            often=True,
            only="attention landmarks map",
            suggest_for="--sample --limit --num-docs",
        ),
    ] = None
    min_tokens: Annotated[
        int,
        Flag(
            "attention, landmarks: minimum number of tokens of a document.",
            min=1,
            only="attention landmarks",
        ),
    ] = 200
    doc: Annotated[
        str | None,
        Flag("similarity: id of the document.", only="similarity"),
    ] = None
    dtype: Annotated[
        Dtype,
        Flag(
            "Compute dtype; auto: bf16 if the hardware supports it natively.",
            only="attention landmarks",
            suggest_for="--torch-dtype --fp16 --bf16 --fp32",
        ),
    ] = "auto"
    device: Annotated[
        Device, Flag("Device: auto, cpu, cuda or cuda:1.", role="speed", only="attention landmarks")
    ] = AUTO
    trust_remote_code: Annotated[
        bool,
        Flag(
            "Run Python code that comes with the model.",
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
    """The contents and the path of the figure."""

    panel: ClassVar[str] = "Figure"

    layers: Annotated[
        Literal["last", "mean", "each"],
        Flag(
            "attention: the last layer, the mean over all layers, or each layer separately.",
            only="attention",
        ),
    ] = "last"
    bins: Annotated[
        int,
        Flag(
            "attention: number of intervals that a document is divided into.",
            min=2,
            only="attention",
        ),
    ] = 20
    by: Annotated[
        str,
        Flag(
            "map: color of a dot: doc, chunk (its number), or a field of the records. lengths: chunk (given "
            "chunks) or positive (of a file of examples), and characters, such as positive,characters.",
            only="map lengths",
        ),
    ] = ""
    method: Annotated[
        Literal["pca", "tsne", "umap"],
        Flag("map: projection: pca, or tsne and umap (extra umap).", only="map"),
    ] = "pca"
    output: Annotated[
        Path | None,
        Flag(
            "Output path of the figure; without a suffix, .svg is added.",
            short="-o",
            often=True,
            role="output",
            suggest_for="--output-dir --output-file --output-path --save-to --plot",
        ),
    ] = None


@dataclass(frozen=True)
class Analyze(Operation[Analysis], FigureOptions, SubjectOptions):
    """Inspect models, vectors and collections; with -o, draw a figure (extra plot).

    attention: positions of a text that its pooled tokens attend to. landmarks: share of landmarks with a
    neighbouring chunk among their nearest chunks. lengths: lengths of documents. map: vectors in two
    dimensions. similarity: cosines between the chunks of one document. FIGURE.json contains the numbers and
    the inputs of a figure.
    """

    verb: ClassVar[str] = "analyze"

    what: Annotated[
        Literal["attention", "landmarks", "lengths", "map", "similarity"],
        Flag(
            "The analysis: attention, landmarks, lengths, map or similarity.",
            argument=True,
            metavar="WHAT",
        ),
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
        """Return the kind of analysis."""
        return self.what, f"lmk analyze {self.what}"

    def execute(self, report: Report) -> Analysis:
        """Compute the numbers. With an output, also draw and record the figure."""
        output = self.output
        if output is None:
            computed = _ANALYSES[self.what](self, report)
        else:
            if not output.suffix and output.name not in ("", ".."):
                output = output.with_suffix(".svg")
            check_file("-o", output, f"{self.what}.svg")
            with exclusive(output):
                computed = self._drawn(output, report)
            report.note(f"the figure is in {output}, its numbers and inputs in {output}.json")
        if computed.note:
            report.note(computed.note)
        return computed.analysis

    def _drawn(self, output: Path, report: Report) -> _Computed:
        """Compute the numbers, draw the figure and record it. The output is checked before any work."""
        from lmkcli.artifact import outputs
        from lmkcli.evaluation.score_plots import check_figure
        from lmkcli.plugins.analysis.curves import KIND, record_figure

        catalog.PLOTS.load("curve")
        check_figure(output)
        outputs.check_sidecar(output, KIND)
        computed = _ANALYSES[self.what](self, report)
        computed.draw(output)
        record_figure(output, computed.inputs, computed.analysis.facts, report.call)
        return computed

    def given_models(self) -> list[str]:
        """Return the models. Raises UsageError if none is given."""
        if not self.models:
            from lmkcli.models.lookup import usable_models

            raise UsageError(
                f"-m/--model is missing; for instance -m {' or -m '.join(usable_models())}"
            )
        return self.models

    def resolved(self, model: str, pool: str, unit: str) -> "ResolvedRecipe":
        """Return the recipe of a model and a pooler. `gran` applies only if texts are cut into chunks."""
        from lmkcli.encoding.resolution import open_pooler, resolve
        from lmkcli.spec.recipe import RecipeOptions

        chunked = unit == "chunk" or pool == "auto" or open_pooler(pool).chunked
        options = RecipeOptions(
            model=model, pool=pool, unit=unit, gran=self.gran if chunked else None,
            max_length=self.max_length, trust_remote_code=self.trust_remote_code,
        )  # fmt: skip
        return resolve(options, self.offline)


def _one(flag: str, values: list[str] | None, default: str) -> str:
    """Return the value of a flag that this analysis accepts only once."""
    if values and len(values) > 1:
        raise UsageError(f"{flag} is given {len(values)} times; this analysis takes it once")
    return values[0] if values else default


def _attention(analyze: Analyze, report: Report) -> _Computed:
    """Attention of the marked positions over relative positions: one line per model and pooler."""
    models, pools = analyze.given_models(), analyze.pools or ["auto"]
    resolved = [analyze.resolved(model, pool, "doc") for model, pool in product(models, pools)]
    from lmkcli.data.collection import open_collection
    from lmkcli.plugins.analysis import attention_profiles

    layers, bins = analyze.layers, analyze.bins
    collection = open_collection(analyze.source)
    profiles: dict[str, attention_profiles.Profile] = {}
    for name, each in zip(_names(resolved), resolved, strict=True):
        opened = attention_profiles.open_attention_model(each, analyze.dtype, analyze.device)
        for profile in attention_profiles.profiles(
            opened, _documents(analyze, report, collection, opened.tokenizer), layers, bins
        ):
            several = layers == "each"
            profiles[f"{name} {profile.layer}".strip() if several else name] = profile
    shown = range(0, bins, max(1, bins // _TABLE_ROWS))
    first = next(iter(profiles.values()))
    rows: list[list[Any]] = [
        [f"{first.points[i].x:.0%}", *(p.points[i].y for p in profiles.values())] for i in shown
    ]
    rows.append(["on special tokens", *(f"{each.special:.1%}" for each in profiles.values())])
    facts = [
        {"name": name, "layer": each.layer, "special": each.special, "documents": each.documents,
         "tokens": each.tokens, "points": [point._asdict() for point in each.points]}
        for name, each in profiles.items()
    ]  # fmt: skip
    draw = _figure("curve", {name: each.points for name, each in profiles.items()},
                  "relative position in the text", "attention, 1 is an even spread")  # fmt: skip
    inputs = _inputs(analyze, "attention", recipes=[each.recipe.identity() for each in resolved],
                 layers=layers, bins=bins)  # fmt: skip
    note = f"{first.documents} documents, {first.tokens:,} tokens; bands are 95 % intervals"
    return _Computed(Analysis(["position", *profiles], rows, facts), draw, inputs, note)


def _landmarks(analyze: Analyze, report: Report) -> _Computed:
    """Hit@k of the chunks next to a landmark and, with judgements, of the landmark that answers a query."""
    model = _one("-m", analyze.given_models(), "")
    pool = _one("--pool", analyze.pools, "lmk")
    if analyze.gran is None:
        raise UsageError("--gran is missing; for instance --gran 32")
    resolved = analyze.resolved(model, pool, "chunk")
    from lmkcli.data.collection import open_collection
    from lmkcli.plugins.analysis import locality as analysis
    from lmkcli.spec.settings import EncodeSettings

    collection = open_collection(analyze.source)
    settings = EncodeSettings(dtype=analyze.dtype, device=analyze.device)
    encoders = analysis.open_encoders(resolved, settings)
    answers = analysis.answers(collection, analyze.gran)
    documents = _documents(analyze, report, collection, encoders.together.tokenizer)
    locality = analysis.locality(encoders, documents, answers)
    rows: list[list[Any]] = [
        [k, *(values[number] for values in locality.hits.values())]
        for number, k in enumerate(locality.depths)
    ]
    lines = {
        name: list(zip(map(float, locality.depths), values, strict=True))
        for name, values in locality.hits.items()
    }
    draw = _figure("curve", lines, "k", "Hit@k")
    inputs = _inputs(analyze, "landmarks", recipe=resolved.recipe.identity())
    note = f"{locality.documents} documents, {locality.landmarks:,} landmarks with a chunk on either side"
    note += f"; answer: {locality.queries} queries" if locality.queries else ""
    return _Computed(Analysis(["k", *locality.hits], rows, locality._asdict()), draw, inputs, note)


def _lengths(analyze: Analyze, report: Report) -> _Computed:
    """Return a histogram over lengths that double, in tokens of a model, in words or in characters."""
    of, unit = _texts_and_unit(analyze)
    tokenizer: Any = None
    if analyze.models:
        from lmkcli.models.tokenizer_folder import open_tokenizer

        resolved = analyze.resolved(_one("-m", analyze.given_models(), ""), "auto", "doc")
        tokenizer = open_tokenizer(resolved.folder, resolved.recipe.doc)
    from lmkcli.plugins.analysis.documents import lengths, texts_of

    with report.job("lengths") as job:
        histogram = lengths(texts_of(analyze.source, of), tokenizer or unit, job)
    bins = list(zip(histogram.edges, histogram.edges[1:], histogram.shares, strict=False))
    rows: list[list[Any]] = [[f"{a:,} to {b:,}", f"{share:.1%}"] for a, b, share in bins]
    name = {"doc": "document", "positive": "positive"}.get(of, of)
    rows += [[f"{name}s", histogram.documents], ["mean", round(histogram.mean)]]
    rows += [[point, value] for point, value in histogram.quantiles.items()]
    for point, value in histogram.per_document.items():
        rows.append([f"{name}s per document, {point}", value])
    labels = (f"length of a {name} ({histogram.what})", f"{name}s")
    draw = _figure("histogram", histogram.edges, histogram.shares, labels)
    inputs = _inputs(analyze, "lengths", tokenizer=tokenizer and resolved.recipe.doc.tokenizer)
    return _Computed(
        Analysis([histogram.what, f"{name}s"], rows, histogram._asdict()), draw, inputs
    )


def _texts_and_unit(analyze: Analyze) -> tuple[str, Literal["words", "characters"]]:
    """Return the texts and the unit that --by names: 'doc', 'chunk' or 'positive', and
    words or characters.
    """
    words = [word for word in analyze.by.split(",") if word]
    texts = [word for word in words if word != "characters"] or ["doc"]
    if len(texts) > 1 or texts[0] not in ("doc", "chunk", "positive"):
        raise UsageError(
            f"--by {analyze.by}: write chunk or positive for lengths, and characters, with a comma between"
        )
    if "characters" in words and analyze.models:
        raise UsageError(
            "--by characters has no effect with -m, which counts tokens; drop one of them"
        )
    return texts[0], "characters" if "characters" in words else "words"


def _vector_map(analyze: Analyze, report: Report) -> _Computed:
    """Vectors in two dimensions, coloured by a field."""
    from lmkcli.plugins.analysis import maps
    from lmkcli.vectors.stored import open_dense

    vectors = open_dense(Path(analyze.source))
    by = analyze.by
    projection = maps.make_map(vectors, analyze.docs or _MAP_DOCS, analyze.method, by)
    labels = (*projection.axes, by)
    draw = _figure("scatter", projection.places, projection.values, labels)
    facts = [
        {"id": doc, "chunk": chunk, "x": float(x), "y": float(y), "value": value}
        for doc, chunk, (x, y), value in zip(
            projection.docs, projection.chunks, projection.places, projection.values, strict=True
        )
    ]
    rows = list(_groups(projection, by))
    inputs = _inputs(analyze, "map", vectors=vectors.digest())
    return _Computed(
        Analysis([by or "all", "vectors", *projection.axes], rows, facts), draw, inputs
    )


def _similarity(analyze: Analyze, report: Report) -> _Computed:
    """Return the cosines between the chunks of a document."""
    if analyze.doc is None:
        raise UsageError("--doc is missing; write the id of a document, as lmk search prints it")
    from lmkcli.plugins.analysis import maps
    from lmkcli.vectors.stored import open_dense

    vectors = open_dense(Path(analyze.source))
    chunks = maps.similarity(vectors, analyze.doc)
    rows = list(_neighbours(chunks))
    draw = _figure("heatmap", chunks.cosines, ("chunk", "cosine"))
    facts = {"doc": analyze.doc, "spans": chunks.spans, "cosines": chunks.cosines.tolist()}
    inputs = _inputs(analyze, "similarity", vectors=vectors.digest(), doc=analyze.doc)
    columns = ["chunk", "characters", "to the next", "to all others", "nearest"]
    return _Computed(Analysis(columns, rows, facts), draw, inputs)


_ANALYSES: dict[str, Callable[[Analyze, Report], _Computed]] = {
    "attention": _attention,
    "landmarks": _landmarks,
    "lengths": _lengths,
    "map": _vector_map,
    "similarity": _similarity,
}


def _documents(analyze: Analyze, report: Report, collection: Any, tokenizer: Any) -> Iterator[Any]:
    """Yield the first documents that are long enough."""
    from lmkcli.plugins.analysis.documents import long_enough

    with report.job("analyze") as job:
        yield from long_enough(
            collection, tokenizer, analyze.docs or _DOCS, analyze.min_tokens, job
        )


def _names(resolved: "list[ResolvedRecipe]") -> list[str]:
    """Distinct names of the recipes: the model, the pooler, or both."""
    models = [each.folder.name for each in resolved]
    pools = [each.recipe.doc.pool for each in resolved]
    if len(set(models)) == 1:
        return pools
    if len(set(pools)) == 1:
        return models
    return [f"{model} {pool}" for model, pool in zip(models, pools, strict=True)]


def _figure(name: str, *what: Any) -> Callable[[Path], None]:
    return lambda path: catalog.PLOTS.load(name)(*what, path)


def _inputs(analyze: Analyze, what: str, **more: Any) -> dict[str, Any]:
    return {"analysis": what, "source": analyze.source, **more}


def _groups(projection: Any, by: str) -> Iterator[list[Any]]:
    """For each value of `by`: the number of vectors and their mean position; the most frequent values first.

    If `by` is numeric: one row with its correlation with each axis.
    """
    import numpy as np

    if by and all(isinstance(value, float) for value in projection.values):
        values = np.array(projection.values)
        correlations = [
            float(np.corrcoef(values, axis)[0, 1]) if np.ptp(values) and np.ptp(axis) else None
            for axis in projection.places.T
        ]
        yield ["correlation with it", len(values), *correlations]
        return
    names, counts = np.unique(np.array(projection.values), return_counts=True)
    for number in np.argsort(-counts, kind="stable")[:_TABLE_ROWS]:
        members = projection.places[np.array(projection.values) == names[number]]
        yield [str(names[number]) or "all", int(counts[number]), *members.mean(0).tolist()]


def _neighbours(chunks: Any) -> Iterator[list[Any]]:
    """For each chunk: its cosine with the next chunk, the mean with all others, and the nearest chunk."""
    import numpy as np

    cosines, count = chunks.cosines, len(chunks.cosines)
    without_self = cosines - 2 * np.eye(count)  # the diagonal can never be the maximum
    for chunk in range(count):
        start, end = chunks.spans[chunk] if chunks.spans else (0, 0)
        next_cosine = float(cosines[chunk, chunk + 1]) if chunk + 1 < count else None
        mean = float((cosines[chunk].sum() - cosines[chunk, chunk]) / (count - 1))
        yield [
            chunk,
            f"{start:,}\u2013{end:,}",
            next_cosine,
            mean,
            int(without_self[chunk].argmax()),
        ]
