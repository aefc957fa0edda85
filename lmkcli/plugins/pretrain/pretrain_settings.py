"""The settings of pre-training, declared like those of other commands (spec/settings.py)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from lmkcli import catalog
from lmkcli.spec.settings import Flag
from lmkcli.training.train_settings import (
    Batches,
    BatchSize,
    LearningRate,
    LoopSettings,
    check_objective_settings,
)


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(LoopSettings):
    """Settings for pre-training an encoder; None selects the objective's default."""

    batch_size: BatchSize = 32
    batches: Batches = "mixed"
    lr: LearningRate = 1e-4
    objective: Annotated[
        str,
        Flag(
            "The objective: mlm, retromae, dupmae and others (lmk show pretexts).",
            often=True,
            aliases="--loss",
            suggest_for="--task",
        ),
    ] = "mlm"
    blocks: Annotated[
        bool,
        Flag("Join texts and cut them into blocks of --max-length, instead of truncating each."),
    ] = False
    mask: Annotated[
        float | None,
        Flag(
            "Share of tokens masked in the encoder's input.",
            min=0,
            max=1,
            shown="usually 0.3",
            aliases="--mlm-probability --mask-probability --encoder-mask",
        ),
    ] = None
    whole_words: Annotated[
        bool | None,
        Flag(
            "Mask whole words instead of single tokens.",
            shown="usually whole words",
            suggest_for="--whole-word-masking --wwm",
        ),
    ] = None
    decoder_mask: Annotated[
        float | None,
        Flag(
            "Share of the text hidden from the decoder for each predicted token.",
            min=0,
            max=1,
            shown="0.5",
        ),
    ] = None
    mask_pool: Annotated[
        int | None,
        Flag("retromae, dupmae: masks drawn for each text.", min=1, shown="256"),
    ] = None
    query_stream: Annotated[
        Literal["embedded", "raw"] | None,
        Flag(
            "retromae, dupmae: the decoder's queries pass through the encoder's embeddings (DupMAE), or "
            "have positions added (RetroMAE).",
            shown="embedded",
        ),
    ] = None
    official_quirks: Annotated[
        bool, Flag("lmk: chunk the special tokens with the text, so that CLS occurs twice.")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        catalog.PRETEXTS.check(self.objective)
        used = frozenset(catalog.PRETEXTS[self.objective].settings)
        check_objective_settings(self, catalog.PRETEXTS, f"--objective {self.objective}", used)
