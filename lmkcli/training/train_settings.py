"""The settings of training, declared like those of other commands (spec/settings.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.spec.settings import DeviceOption, Flag, Settings, composed, declared_groups
from lmkcli.spec.values import AUTO, is_count

# Flags whose defaults a kind of training may choose.
BatchSize = Annotated[
    int,
    Flag(
        "Queries or texts per batch, over all processes.",
        min=1,
        often=True,
        suggest_for="--per-device-train-batch-size --train-batch-size",
    ),
]
Batches = Annotated[
    Literal["source", "mixed"], Flag("Draw a batch from one source, or mix sources in a batch.")
]
LearningRate = Annotated[
    float, Flag("Peak learning rate.", min=0, often=True, aliases="--learning-rate")
]


@dataclass(frozen=True, kw_only=True)
class LoopSettings(Settings):
    """The settings of every training loop, with the defaults of `lmk train`."""

    panel: ClassVar[str] = "Training"
    batch_size: BatchSize = 64
    batches: Batches = "source"
    sampling_temperature: Annotated[
        float,
        Flag(
            "Sampling of sources: in proportion to their size (1), or more evenly (above 1).", min=0
        ),
    ] = 1.0
    like_length: Annotated[bool, Flag("Batch texts of similar length.")] = True
    steps: Annotated[
        int, Flag("Number of steps; 0: as many as --epochs needs.", min=0, aliases="--max-steps")
    ] = 0
    epochs: Annotated[
        float,
        Flag(
            "Passes over the data, unless --steps is given.",
            min=0,
            often=True,
            aliases="--num-train-epochs --num-epochs",
        ),
    ] = 1.0
    lr: LearningRate = 2e-5
    warmup: Annotated[
        float,
        Flag(
            "Warm-up steps; below 1, a share of all steps.",
            min=0,
            aliases="--warmup-ratio --warmup-steps",
        ),
    ] = 0.05
    schedule: Annotated[
        Literal["linear", "cosine", "constant_with_warmup"],
        Flag(
            "Schedule of the learning rate after warm-up.",
            aliases="--lr-scheduler-type",
            suggest_for="--scheduler",
        ),
    ] = "linear"
    min_lr_rate: Annotated[
        float,
        Flag(
            "Cosine: final learning rate, as a share of --lr.",
            min=0,
            suggest_for="--min-lr",
        ),
    ] = 0.0
    weight_decay: Annotated[float, Flag("Weight decay of AdamW, for matrices only.", min=0)] = 0.01
    adam_betas: Annotated[
        str, Flag("Betas of AdamW.", suggest_for="--adam-beta1 --adam-beta2 --betas")
    ] = "0.9,0.999"
    adam_epsilon: Annotated[
        float, Flag("Epsilon of AdamW.", min=1e-30, suggest_for="--eps --epsilon")
    ] = 1e-8
    max_grad_norm: Annotated[
        float,
        Flag(
            "Maximum norm of gradients; 0: none.",
            min=0,
            aliases="--gradient-clipping",
            suggest_for="--clip",
        ),
    ] = 1.0
    gradient_checkpointing: Annotated[
        bool, Flag("Recompute states in the backward pass: less memory, more time.")
    ] = False
    dtype: Annotated[
        Literal["auto", "fp32", "bf16"],
        Flag(
            "Dtype of the forward pass; the weights are also kept in fp32.",
            suggest_for="--torch-dtype --fp16 --bf16 --fp32 --half --precision",
        ),
    ] = "auto"
    device: DeviceOption = AUTO
    batch_tokens: Annotated[
        int,
        Flag(
            "Positions per pass; larger batches use gradient caching; 0: chosen for the device.",
            min=0,
        ),
    ] = 0
    seed: Annotated[int, Flag("Seed of all random choices.", min=0)] = 0
    save_every: Annotated[
        int, Flag("Steps between checkpoints; 0: only at the end.", min=0, aliases="--save-steps")
    ] = 0
    log_every: Annotated[
        int, Flag("Steps between lines of log.jsonl.", min=1, aliases="--logging-steps --log-steps")
    ] = 10
    tensorboard: Annotated[
        bool, Flag("Log for TensorBoard as well, in the folder's tensorboard/.")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = {"lr": 1e38, "epochs": 1e6, "steps": 1 << 31, "warmup": 1 << 31, "seed": 1 << 32}
        limits |= {"save_every": 1 << 32, "log_every": 1 << 32, "weight_decay": 1e38}
        limits |= {"min_lr_rate": 1.0, "adam_epsilon": 1.0}
        for name, most in limits.items():
            if not getattr(self, name) < most:
                raise UsageError(
                    f"--{name.replace('_', '-')} {getattr(self, name)} is out of range; write less than "
                    f"{most:g}"
                )

        read_betas(self.adam_betas)
        if self.min_lr_rate and self.schedule != "cosine":
            raise UsageError(
                f"--min-lr-rate has no effect with --schedule {self.schedule}; use --schedule cosine"
            )

    def with_steps(self, examples: int) -> Self:
        """Return the settings with the number of steps. Without --steps, compute it from the epochs."""
        steps = self.steps or max(1, int(self.epochs * examples) // self.batch_size)
        return replace(self, steps=steps)

    def without_checkpoints(self) -> Self:
        """Return the settings changed so that training writes no checkpoints."""
        return replace(self, save_every=self.steps + 1)


POOLER_SETTINGS = declared_groups(catalog.POOLERS, "train_settings")

if TYPE_CHECKING:

    class PoolerSettings(Settings):
        """The settings of all poolers that have some."""

else:
    PoolerSettings = composed("PoolerSettings", *POOLER_SETTINGS.values())


@dataclass(frozen=True, kw_only=True)
class TrainSettings(LoopSettings, PoolerSettings):
    """Settings for training a bi-encoder."""

    loss: Annotated[
        str,
        Flag(
            "The objective, a sum such as kl+0.5*opl, or one with settings such as "
            "kl:temperature=0.1,infonce=0 (lmk show losses).",
            often=True,
            aliases="--objective",
            suggest_for="--loss-function",
        ),
    ] = "infonce"
    temperature: Annotated[
        float,
        Flag(
            "Divisor of the scores; 0: the default of the pooler, else of the objective (0.02).",
            min=0,
        ),
    ] = 0.0
    symmetric: Annotated[bool, Flag("infonce: also contrast each passage with all queries.")] = (
        False
    )
    teacher: Annotated[
        str,
        Flag(
            "Teacher model: add the distance from its vectors to the loss. It reads long texts in "
            "windows.",
            role="model",
            suggest_for="--distill",
        ),
    ] = ""
    teacher_weight: Annotated[
        float, Flag("Weight of the distance from the teacher's vectors.", min=0)
    ] = 1.0
    dims: Annotated[
        str,
        Flag(
            "Matryoshka: compute the loss at several dimensions, such as 384,256,128.",
            aliases="--matryoshka-dims",
            suggest_for="--matryoshka --mrl --dim",
        ),
    ] = ""
    lora: Annotated[
        int,
        Flag(
            "Train adapters of this rank (LoRA) instead of all weights; 0: none.",
            min=0,
            aliases="--lora-rank --lora-r",
            suggest_for="--peft",
        ),
    ] = 0
    train: Annotated[
        str,
        Flag(
            "Train only these parts (with --lora: also these parts): embeddings, positions, "
            "layers.4-5, norms, biases, modules."
        ),
    ] = ""
    freeze: Annotated[str, Flag("Parts to freeze; the same names as for --train.")] = ""
    skip_positions: Annotated[
        float,
        Flag(
            "Share of passages that get a gap in their positions; positions reach up to --max-length "
            "(PoSE).",
            min=0,
            max=1,
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        from lmkcli.training.losses import LossNotation  # imports msgspec

        used = LossNotation.parse(self.loss).flags
        check_objective_settings(self, catalog.LOSSES, f"--loss {self.loss}", used)


@dataclass(frozen=True, kw_only=True)
class DevelopmentSettings(Settings):
    """What a training is evaluated on, and how often; a subclass says what `dev` names."""

    panel: ClassVar[str] = "Development set"
    remedy: ClassVar[str] = "add a collection"
    dev: list[str] | None = None
    dev_every: Annotated[
        int,
        Flag(
            "Steps between evaluations; 0: a tenth of all steps.",
            min=0,
            aliases="--eval-steps",
            suggest_for="--eval-every",
        ),
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        # the fields of the group, also if it is a part of an operation
        group = next(kind for kind in type(self).__mro__ if DevelopmentSettings in kind.__bases__)
        given = [f.name for f in fields(group) if getattr(self, f.name) != f.default]
        if given and not self.dev:
            flag = given[0].replace("_", "-")
            raise UsageError(f"--{flag} has no effect without --dev; {self.remedy}, or drop it")


@dataclass(frozen=True, kw_only=True)
class DevSettings(DevelopmentSettings):
    """Settings for evaluating a model during its training."""

    dev: Annotated[
        list[str] | None,
        Flag(
            "A judged collection to evaluate on; repeatable.",
            often=True,
            role="collection",
            suggest_for="--eval --validation --dev-set",
        ),
    ] = None
    dev_measure: Annotated[
        str,
        Flag(
            "Measure, in the notation of ir-measures.",
            aliases="--dev-metric",
            suggest_for="--metric --measure --metric-for-best-model",
        ),
    ] = "nDCG@10"
    patience: Annotated[
        int,
        Flag(
            "Stop after this many evaluations without improvement; 0: never.",
            min=0,
            aliases="--early-stopping-patience",
            suggest_for="--early-stopping",
        ),
    ] = 0


def check_objective_settings(
    settings: LoopSettings,
    table: catalog.Catalog[catalog.ObjectiveRow],
    chosen: str,
    used: frozenset[str],
) -> None:
    """Raise UsageError for a setting of objectives that the chosen one does not use."""
    specific = {each for row in table.values() for each in row.settings}
    for other in sorted(specific - used):
        if getattr(settings, other) != getattr(type(settings), other):  # the default
            unused = other.replace("_", "-")
            raise UsageError(f"--{unused} has no effect with {chosen}; drop it")


def read_betas(text: str) -> tuple[float, float]:
    """Parse the two numbers of --adam-betas. Raises UsageError if one is not from 0 to below 1."""
    try:
        first, second = map(float, text.split(","))
    except ValueError:
        first = second = -1.0
    if not (0 <= first < 1 and 0 <= second < 1):
        raise UsageError(
            f"--adam-betas {text}: write two numbers from 0 to below 1, such as 0.9,0.98"
        )
    return first, second


def read_dims(text: str) -> list[int]:
    """Parse the dimensions of --dims; empty text gives an empty list. Raises UsageError for invalid text."""
    if not text:
        return []
    if not all(is_count(part) for part in text.split(",")):
        raise UsageError(f"--dims {text}: write numbers separated by commas, such as 384,256,128")
    return [int(part) for part in text.split(",")]


def check_dims(dims: Sequence[int], whole: int | None) -> None:
    """Raise UsageError if a dimension exceeds `whole`, the dimensions of the vectors (None: unknown)."""
    for dim in dims:
        if not 0 < dim <= (whole or dim):
            raise UsageError(
                f"--dims {dim}: the model's vectors have {whole} dimensions; write 1 to {whole}"
            )
