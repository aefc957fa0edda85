"""The options of lmk analyze: what is looked at, what is shown of it, and where."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from lmkcli.cli.options import Json, Output
from lmkcli.settings import Device, Dtype, Flag, Offline, TrustRemoteCode


@dataclass(frozen=True)
class RunOptions:
    """How a model is run."""

    dtype: Annotated[Dtype, Flag("Compute dtype; auto is bf16 where native.")] = "auto"
    device: Device = "auto"
    trust_remote_code: TrustRemoteCode = False
    offline: Offline = False


@dataclass(frozen=True)
class SubjectOptions(RunOptions):
    """What is looked at."""

    panel: ClassVar[str] = "What is looked at"

    models: Annotated[
        list[str] | None,
        Flag(
            "attention: a line for each model, repeat it; landmarks: one; lengths: whose tokens.",
            long="--model",
            short="-m",
            often=True,
        ),
    ] = None
    pools: Annotated[
        list[str] | None,
        Flag(
            "attention: a line for each pooler, repeat it; landmarks: one.",
            long="--pool",
            shown="auto, lmk",
        ),
    ] = None
    gran: Annotated[
        str | None, Flag("attention, landmarks: chunks of so many tokens, sentence or given.")
    ] = None
    max_length: Annotated[
        int | None, Flag("attention, landmarks: positions that the model sees.", min=1)
    ] = None
    docs: Annotated[
        int | None, Flag("How many documents.", min=1, shown="20; map: 2000", often=True)
    ] = None
    min_tokens: Annotated[
        int, Flag("attention, landmarks: only documents of so many tokens.", min=1)
    ] = 200
    doc: Annotated[str | None, Flag("similarity: the document whose chunks are compared.")] = None


@dataclass(frozen=True)
class ShownOptions:
    """What is shown of it, and where."""

    panel: ClassVar[str] = "What is shown"
    layers: Annotated[
        Literal["last", "mean", "each"],
        Flag("attention: of the last layer, the mean of all, or each by itself."),
    ] = "last"
    bins: Annotated[int, Flag("attention: stretches of a document.", min=2)] = 20
    by: Annotated[
        str, Flag("map: what colours a dot: doc, chunk (its number), or a field of the records.")
    ] = ""
    method: Annotated[Literal["pca", "umap"], Flag("map: pca, or umap (extra umap).")] = "pca"
    output: Output = None
    json: Json = False
