"""`lmk train` that changes only the embedding of SEP, for an experiment in benchmarks/lmk-minilm.md.

python benchmarks/side_by_side/token_first.py train SOURCE… --pool lmk --train embeddings -o FOLDER

Weight decay shrinks the other embeddings a little (here by 0.1 %); --weight-decay 0 prevents it.
"""

import torch

from lmkcli.cli.main import main
from lmkcli.models.forward import ForwardPass
from lmkcli.training.step import trainable

SEP = 102  # in the vocabulary of BERT


def select_token(forward: ForwardPass, only: str, frozen: str, rank: int = 0) -> None:
    """Freeze all weights but the embedding of SEP."""
    forward.requires_grad_(False)
    table = forward.encoder.get_parameter("embeddings.word_embeddings.weight").requires_grad_()
    rows = torch.zeros(len(table), 1)
    rows[SEP] = 1
    table.register_hook(lambda gradient: gradient * rows.to(gradient))


if __name__ == "__main__":
    trainable.select_trained = select_token
    main()
