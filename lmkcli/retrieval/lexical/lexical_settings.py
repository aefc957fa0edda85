"""Settings of lexical indexes: terms, scores, chunks, and feedback."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.spec.settings import Flag, Settings

LEXICAL_KINDS = ", ".join(filter(catalog.is_lexical, catalog.ENGINES))


@dataclass(frozen=True, kw_only=True)
class LexicalSettings(Settings):
    """Settings for building a BM25 index. Every field changes scores."""

    panel: ClassVar[str] = "BM25"
    k1: Annotated[float, Flag(f"{LEXICAL_KINDS}: term saturation.", min=0, only="lexical")] = 0.9
    b: Annotated[
        float, Flag(f"{LEXICAL_KINDS}: length normalisation.", min=0, max=1, only="lexical")
    ] = 0.4
    language: Annotated[
        str,
        Flag(
            f"{LEXICAL_KINDS}: language of the stemmer and the stop words, such as en, de or hi.",
            only="lexical",
            aliases="--lang",
            often=True,
        ),
    ] = "en"
    stemmer: Annotated[
        str,
        Flag(
            f"{LEXICAL_KINDS}: another stemmer, such as porter, or none.",
            only="lexical",
        ),
    ] = ""
    stopwords: str | None = None  # words separated by spaces; None: the list of the language
    unit: Annotated[
        Literal["doc", "chunk"],
        Flag(f"{LEXICAL_KINDS}: index documents or chunks.", only="lexical"),
    ] = "doc"
    gran: Annotated[
        str,
        Flag(
            f"{LEXICAL_KINDS}: granularity, the length of chunks: a number of words, 'sentence', or "
            "'given' (as the collection defines).",
            only="lexical",
        ),
    ] = ""
    context: Annotated[
        str,
        Flag(
            f"{LEXICAL_KINDS}: text to add before each chunk: title, headings (Markdown, HTML), or "
            "field:NAME.",
            only="lexical",
        ),
    ] = ""

    def identity(self) -> dict[str, Any]:
        """Return the fields as an index records them: the first five always, the others if they are used."""
        defaults = {each.name: each.default for each in fields(self) if each.name not in _ALWAYS}
        recorded = asdict(self).items()
        return {name: value for name, value in recorded if defaults.get(name, ...) != value}


_ALWAYS = ("k1", "b", "language", "stemmer", "stopwords")


@dataclass(frozen=True)
class Feedback:
    """Pseudo-relevance feedback: expansion of a query by terms of its first documents."""

    method: Literal["rm3", "rocchio"]
    terms: int = 10  # number of added terms
    docs: int = 10  # number of documents that provide them
    weight: float = 0.5  # rm3: weight of the original query


@dataclass(frozen=True, kw_only=True)
class FeedbackSettings(Settings):
    """Expansion of queries by pseudo-relevance feedback."""

    panel: ClassVar[str] = "Index settings"
    rm3: Annotated[
        bool,
        Flag(
            f"{LEXICAL_KINDS}: expand queries with RM3 feedback.",
            only="feedback",
            suggest_for="--prf --feedback --expand",
        ),
    ] = False
    rm3_terms: Annotated[
        int | None,
        Flag("rm3: number of terms to add.", min=1, shown=str(Feedback.terms), only="feedback"),
    ] = None
    rm3_docs: Annotated[
        int | None,
        Flag(
            "rm3: number of documents to take terms from.",
            min=1,
            shown=str(Feedback.docs),
            only="feedback",
        ),
    ] = None
    rm3_weight: Annotated[
        float | None,
        Flag(
            "rm3: weight of the original query.",
            min=0,
            max=1,
            shown=str(Feedback.weight),
            only="feedback",
        ),
    ] = None
    rocchio: Annotated[
        bool, Flag(f"{LEXICAL_KINDS}: expand queries with Rocchio feedback.", only="feedback")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rm3 and self.rocchio:
            raise UsageError("give --rm3 or --rocchio, not both")
        if self._chosen and not self.rm3:
            raise UsageError(f"--rm3-{next(iter(self._chosen))} has no effect without --rm3")

    @property
    def feedback(self) -> Feedback | None:
        """The feedback that --rm3 or --rocchio selects."""
        if self.rocchio:
            return Feedback("rocchio")
        return replace(Feedback("rm3"), **self._chosen) if self.rm3 else None

    @property
    def _chosen(self) -> dict[str, Any]:
        """The settings of RM3 that were given."""
        names = ("terms", "docs", "weight")
        given = {name: getattr(self, f"rm3_{name}") for name in names}
        return {name: value for name, value in given.items() if value is not None}
