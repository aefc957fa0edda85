"""The options of lmk eval: what runs are held against, which table is printed, what is recorded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from lmkcli.cli.options import Json
from lmkcli.cli.tables import Format, form_of
from lmkcli.errors import UsageError
from lmkcli.settings import Flag, Offline

Correction = Literal["holm", "bonferroni", "bh"]
CORRECTION: Correction = "holm"


@dataclass(frozen=True)
class ScoreOptions:
    """What runs are held against."""

    panel: ClassVar[str] = "Scores"

    qrels: Annotated[
        list[str] | None,
        Flag(
            "A qrels file or a collection, for all runs or, repeated, one for each; else as each run "
            "says.",
            often=True,
        ),
    ] = None
    measure: Annotated[
        list[str] | None,
        Flag(
            "ir-measures names; repeat it. Default: the collection's own if it is known, else "
            "nDCG@10, R@100, RR@10.",
            short="-m",
            often=True,
        ),
    ] = None
    drop_self: Annotated[
        Literal["auto", "yes", "no"],
        Flag(
            "Remove documents of the query's own id first; auto: where the collection is known to "
            "need it (ArguAna, Quora)."
        ),
    ] = "auto"
    strict: Annotated[bool, Flag("Exit 4 when a judged query is missing from a run.")] = False
    offline: Offline = False

    @property
    def drops_self(self) -> bool | None:
        """Whether documents of the query's own id go; None where the collection decides."""
        return {"yes": True, "no": False}.get(self.drop_self)


@dataclass(frozen=True)
class TableOptions:
    """Which table is printed, and how. UsageError for flags that contradict each other."""

    panel: ClassVar[str] = "The table"

    name: Annotated[
        list[str] | None,
        Flag("What the rows are called, one for each run in their order; repeat it."),
    ] = None
    per_query: Annotated[bool, Flag("One row per query.", short="-p")] = False
    baseline: Annotated[
        str | None,
        Flag("Test every other run against this one of the runs, query by query.", often=True),
    ] = None
    all_pairs: Annotated[bool, Flag("Test every run against every other.")] = False
    correction: Annotated[
        Correction | None, Flag("Correction of the p-values for multiple tests.", shown=CORRECTION)
    ] = None
    by: Annotated[
        str | None,
        Flag(
            "Break scores down by length (words of the relevant documents), query-length, or what "
            "the collection says of its queries, such as position or language."
        ),
    ] = None
    bins: Annotated[
        str | None,
        Flag("Edges for --by, such as 0,512,2048,8192; else quartiles of the queries."),
    ] = None
    form: Annotated[
        Format, Flag("How the table is printed.", short="-f", long="--format", often=True)
    ] = Format.table
    json: Json = False

    def __post_init__(self) -> None:
        chosen = [name for name in ("per_query", "baseline", "all_pairs", "by") if vars(self)[name]]
        if len(chosen) > 1:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in chosen)
            raise UsageError(f"{flags} print different tables; give one of them")
        if self.bins is not None and self.by is None:
            raise UsageError("--bins has no effect without --by; add --by length, or drop it")
        if self.correction is not None and self.baseline is None and not self.all_pairs:
            raise UsageError(
                "--correction has no effect without --baseline or --all-pairs; add one, or drop it"
            )
        form_of(self.form, self.json)

    @property
    def method(self) -> Correction:
        """The correction that was asked for, else the default one."""
        return self.correction or CORRECTION

    @property
    def format(self) -> Format:
        """How the table is printed; --json is short for one of them."""
        return form_of(self.form, self.json)

    @property
    def edges(self) -> list[float]:
        """The bounds of the groups; none for quarters."""
        try:
            return [float(edge) for edge in (self.bins or "").split(",") if self.bins]
        except ValueError:
            raise UsageError(
                f"--bins {self.bins}: write numbers, such as 0,512,2048,8192"
            ) from None


@dataclass(frozen=True)
class RecordOptions:
    """What remains of an evaluation beside the table."""

    panel: ClassVar[str] = "Beside the table"

    log: Annotated[
        Path | None,
        Flag("Append each result with its provenance to this JSON-lines file.", often=True),
    ] = None
    ir_metadata: Annotated[bool, Flag("Write what is known of each run beside it, as YAML.")] = (
        False
    )
    plot: Annotated[
        Path | None,
        Flag(
            "Draw the means with intervals; with --baseline the differences query by query, with --by "
            "a curve over the groups (.png, .svg or .pdf; extra plot)."
        ),
    ] = None
