"""Make models of a published shape with random weights, to measure speed without access to a hub.

    python benchmarks/shapes.py modernbert-base OUT      # 22 layers, 768 wide, 8,192 positions
    python benchmarks/shapes.py bert-base OUT

The tokenizer is MiniLM's (extra demo). Use such models only to measure speed: their scores mean nothing.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, ModernBertConfig

from lmkcli.models.lookup import read_model

WORDS = 30522
SHAPES = {
    "bert-base": BertConfig(vocab_size=WORDS),
    "modernbert-base": ModernBertConfig(
        vocab_size=WORDS,
        pad_token_id=0,
        cls_token_id=101,
        sep_token_id=102,
        bos_token_id=101,
        eos_token_id=102,
    ),
}


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(f"usage: shapes.py {'|'.join(SHAPES)} OUT")
    shape, out = SHAPES[sys.argv[1]], Path(sys.argv[2])
    torch.manual_seed(0)
    AutoModel.from_config(shape).save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(str(read_model("minilm").path))
    tokenizer.model_max_length = shape.max_position_embeddings
    tokenizer.save_pretrained(out)
    print(out)


if __name__ == "__main__":
    main()
