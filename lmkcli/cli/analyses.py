"""What lmk analyze computes, prints, draws and records: a function for each of its words."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lmkcli import catalog
from lmkcli.cli import console, recording, tables
from lmkcli.cli.analyzeoptions import ShownOptions, SubjectOptions
from lmkcli.errors import UsageError
from lmkcli.spec.result import Format

if TYPE_CHECKING:
    from lmkcli.encoding.resolving import Resolved

_DOCS, _DOTS = 20, 2000  # of a collection that is read; of a map
_ROWS = 10  # of a printed table, about


class Shown(NamedTuple):
    """An analysis: its table, the same as JSON, what draws it, and what it was made from."""

    columns: list[str]
    rows: list[list[Any]]
    facts: Any
    draw: Callable[[Path], None]
    made_from: Mapping[str, Any]


@dataclass(frozen=True)
class Ask:
    """What the command line asks for."""

    source: str
    subject: SubjectOptions
    shown: ShownOptions

    def check_output(self) -> None:
        """All that can be refused of the figure before anything is computed."""
        if self.shown.output is not None:
            from lmkcli.provenance import figures
            from lmkcli.store import outputs

            catalog.load(catalog.PLOTS, "curve", "plot")
            outputs.check_sidecar(self.shown.output, figures.KIND)

    @property
    def models(self) -> list[str]:
        """The models that are given, one at least."""
        if not self.subject.models:
            raise UsageError("-m is missing, for instance -m minilm")
        return self.subject.models

    def one(self, flag: str, values: list[str] | None, otherwise: str) -> str:
        """The value of a flag that this analysis takes once."""
        if values and len(values) > 1:
            raise UsageError(f"{flag} is given {len(values)} times; give it once here")
        return values[0] if values else otherwise

    def resolved(self, model: str, pool: str, unit: str) -> "Resolved":
        """The recipe of a model and a pooler; --gran goes to what cuts texts into chunks."""
        from lmkcli.encoding.asking import open_pooler
        from lmkcli.encoding.resolving import resolve
        from lmkcli.recipe import RecipeOptions

        subject = self.subject
        chunked = unit == "chunk" or pool == "auto" or open_pooler(pool).chunked
        options = RecipeOptions(
            model=model, pool=pool, unit=unit, gran=subject.gran if chunked else None,
            max_length=subject.max_length, trust_remote_code=subject.trust_remote_code,
        )  # fmt: skip
        return resolve(options, subject.offline)

    def show(self, found: Shown) -> None:
        """The table or its JSON; the figure and its record."""
        path = self.shown.output
        if path is not None:
            from lmkcli.provenance import figures

            found.draw(path)
            figures.record(path, found.made_from, found.facts, recording.call())
        if self.shown.json:
            console.plain_json(found.facts)
        else:
            tables.table(found.columns, found.rows, Format.table)
        if path is not None:
            console.note(f"the figure is in {path}, its numbers and sources in {path}.json")


def attention(ask: Ask) -> None:
    """Attention of the marked positions over relative positions, a line for each model and pooler."""
    models, pools = ask.models, ask.subject.pools or ["auto"]
    resolved = [ask.resolved(model, pool, "doc") for model, pool in product(models, pools)]
    from lmkcli.analysis import attending
    from lmkcli.data.collection import open_collection

    layers, bins = ask.shown.layers, ask.shown.bins
    collection = open_collection(ask.source)
    found: dict[str, attending.Profile] = {}
    for name, each in zip(_names(resolved), resolved, strict=True):
        watcher = attending.open_watcher(each, ask.subject.dtype, ask.subject.device)
        for profile in attending.profiles(
            watcher, _rows(ask, collection, watcher.tokenizer), layers, bins
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
    ask.show(Shown(["position", *found], rows, facts, draw, made))
    console.note(f"{first.documents} documents, {first.tokens:,} tokens; bands are 95 % intervals")


def landmarks(ask: Ask) -> None:
    """Hit@k of the chunks beside a landmark, and of a query's landmark where answers are known."""
    model = ask.one("-m", ask.models, "")
    pool = ask.one("--pool", ask.subject.pools, "lmk")
    if ask.subject.gran is None:
        raise UsageError("--gran is missing, for instance --gran 32")
    resolved = ask.resolved(model, pool, "chunk")
    from lmkcli.analysis import locality as analysis
    from lmkcli.data.collection import open_collection
    from lmkcli.settings import EncodeSettings

    collection = open_collection(ask.source)
    settings = EncodeSettings(dtype=ask.subject.dtype, device=ask.subject.device)
    pair = analysis.open_pair(resolved, settings)
    asked = analysis.answers(collection, ask.subject.gran)
    found = analysis.locality(pair, _rows(ask, collection, pair.together.tokenizer), asked)
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
    ask.show(Shown(["k", *found.hits], rows, found._asdict(), draw, made))
    console.note(
        f"{found.documents} documents, {found.landmarks:,} landmarks with a chunk on either side"
        + (f"; answer: {found.queries} queries" if found.queries else "")
    )


def lengths(ask: Ask) -> None:
    """A histogram over lengths that double, in tokens of a model or in words."""
    from lmkcli.data.collection import open_collection

    tokenizer: Any = None
    if ask.subject.models:
        from lmkcli.models.tokenizer import open_tokenizer

        resolved = ask.resolved(ask.one("-m", ask.models, ""), "auto", "doc")
        tokenizer = open_tokenizer(resolved.folder, resolved.recipe.doc)
    from lmkcli.analysis import lengths as analysis

    with console.reporting("lengths", recording.call()) as report:
        found = analysis.lengths(open_collection(ask.source), tokenizer, report)
    bins = list(zip(found.edges, found.edges[1:], found.shares, strict=False))
    rows: list[list[Any]] = [[f"{a:,} to {b:,}", f"{share:.1%}"] for a, b, share in bins]
    rows += [["documents", found.documents], ["mean", round(found.mean)]]
    rows += [[name, value] for name, value in found.quantiles.items()]
    labels = (f"length of a document ({found.what})", "documents")
    draw = _drawn("histogram", found.edges, found.shares, labels)
    made = _made(ask, "lengths", tokenizer=tokenizer and resolved.recipe.doc.tokenizer)
    ask.show(Shown([found.what, "documents"], rows, found._asdict(), draw, made))


def vector_map(ask: Ask) -> None:
    """Vectors in two dimensions, coloured by a field."""
    from lmkcli.analysis import mapping
    from lmkcli.store.vectors import Vectors

    vectors = Vectors(Path(ask.source))
    by = ask.shown.by
    found = mapping.make_map(vectors, ask.subject.docs or _DOTS, ask.shown.method, by)
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
    ask.show(Shown([by or "all", "vectors", *found.axes], rows, facts, draw, made))


def similarity(ask: Ask) -> None:
    """The cosines between the chunks of a document."""
    if ask.subject.doc is None:
        raise UsageError("--doc is missing: the id of a document, as lmk search prints it")
    from lmkcli.analysis import mapping
    from lmkcli.store.vectors import Vectors

    vectors = Vectors(Path(ask.source))
    found = mapping.similarity(vectors, ask.subject.doc)
    rows = list(_neighbours(found))
    draw = _drawn("heatmap", found.cosines, ("chunk", "cosine"))
    facts = {"doc": ask.subject.doc, "spans": found.spans, "cosines": found.cosines.tolist()}
    made = _made(ask, "similarity", vectors=vectors.digest(), doc=ask.subject.doc)
    columns = ["chunk", "characters", "to the next", "to all others", "nearest"]
    ask.show(Shown(columns, rows, facts, draw, made))


class Analysis(NamedTuple):
    """A function, and the flags that mean something to it beside --output and --json."""

    answer: Callable[[Ask], None]
    flags: set[str]


_RUN = {"dtype", "device", "trust_remote_code", "offline"}
_PLACED = {"models", "pools", "gran", "max_length", "docs", "min_tokens"} | _RUN
ANALYSES = {
    "attention": Analysis(attention, _PLACED | {"layers", "bins"}),
    "landmarks": Analysis(landmarks, _PLACED),
    "lengths": Analysis(lengths, {"models", "trust_remote_code", "offline"}),
    "map": Analysis(vector_map, {"docs", "by", "method"}),
    "similarity": Analysis(similarity, {"doc"}),
}


def _rows(ask: Ask, collection: Any, tokenizer: Any) -> Iterator[Any]:
    from lmkcli.analysis.documents import long_enough

    docs, least = ask.subject.docs or _DOCS, ask.subject.min_tokens
    with console.reporting("analyze", recording.call()) as report:
        yield from long_enough(collection, tokenizer, docs, least, report)


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


def _made(ask: Ask, what: str, **more: Any) -> dict[str, Any]:
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
