"""A plug-in for lmk: each row declares a part, and lmk imports the code of a part when it is used."""

from lmkcli.catalog import (
    CodecRow,
    Config,
    EngineRow,
    LossRow,
    ModelRow,
    PoolerRow,
    ReaderRow,
    SourceRow,
    VerbRow,
)


def is_bag(config: Config) -> bool:
    """Whether a config.json describes a model of model.py."""
    return config.get("model_type") == "bag-of-words"


ROWS = (
    PoolerRow("head@k", "lmk_example.pooler:head", "the mean over the first k positions"),
    PoolerRow(
        "gate",
        "lmk_example.gate:GATE",
        "the mean of states times learned gates",
        weights="gate",  # this folder of a model is a part of its digest
    ),
    LossRow(
        "triplet",
        "lmk_example.loss:Triplet",
        "a positive must be closer than each negative, by a margin",
        needs=("negatives",),
    ),
    EngineRow(
        "blocks",
        "lmk_example.engine:Blocks",
        "compares all vectors of a file, block by block",
        variant="vectors",
        settings="lmk_example.engine_settings:BlockSettings",
        search_settings="lmk_example.engine_settings:BlockSearchSettings",
    ),
    CodecRow("bf16", "lmk_example.codec:BF16", "a bfloat16 for each dimension"),
    ReaderRow("ini", "lmk_example.reader:read_ini", "INI files", suffixes=(".ini",)),
    SourceRow(
        "numbers",
        "lmk_example.source:open_numbers",
        "the names of numbers: numbers/20",
        prefixes=("numbers/",),
    ),
    ModelRow(
        "bag", "lmk_example.model:open_bag", "word embeddings without any layer", matches=is_bag
    ),
    VerbRow(
        "count",
        "lmk_example.count:Count",
        "Count the documents of a collection.",
        group="Inspect",
        examples=("lmk count ./mydocs", "lmk count beir/scifact/test --words"),
    ),
)
