"""Pre-training: the corpus, masking, and jobs that train an encoder on plain texts."""

from lmkcli.catalog import PretextRow, VerbRow

_DECODED = ("mask", "whole_words", "decoder_mask", "mask_pool", "query_stream")

ROWS = (
    VerbRow(
        "pretrain",
        "lmkcli.plugins.pretrain.pretrain:Pretrain",
        "Pre-train an encoder on texts: MLM, RetroMAE and others.",
        group="Train",
        examples=(
            "lmk pretrain ./mydocs -m BASE -o model/",
            "lmk pretrain ./mydocs -m BASE --objective retromae --pool lmk --gran 256 -o model/",
        ),
        makes=True,
    ),
    PretextRow(
        "mlm",
        "lmkcli.plugins.pretrain.mlm:Mlm",
        "predict the masked tokens (BERT)",
        settings=("mask", "whole_words"),
    ),
    PretextRow(
        "retromae",
        "lmkcli.plugins.pretrain.retromae:RetroMae",
        "MLM, plus a decoder that predicts every token from the vector and a part of the text",
        settings=_DECODED,
    ),
    PretextRow(
        "dupmae",
        "lmkcli.plugins.pretrain.retromae:DupMae",
        "RetroMAE, plus a bag-of-words loss on the vector",
        settings=_DECODED,
    ),
)
