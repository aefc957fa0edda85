"""Late chunking: an embedding for each sentence, computed from the whole document.

For each query, python examples/late_chunking.py [MODEL] prints the document with the best sentence, and
that sentence.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import lmkcli

KITCHEN = str(Path(__file__).parent / "kitchen")
FP32 = lmkcli.EncodeSettings(dtype="fp32")  # the same numbers on every machine
OPTIONS = lmkcli.RecipeOptions(pool="mean", unit="chunk", gran="sentence")


def main(model: str = "minilm") -> None:
    """Print each query with the passage that answers it."""
    with TemporaryDirectory() as folder:
        lmkcli.encode_collection(KITCHEN, Path(folder), model, OPTIONS, FP32)
        index = lmkcli.open_index(folder)
        for query in lmkcli.open_collection(KITCHEN).judged_queries():
            [best] = index.search([query], k=1).rankings[query.id].doc_ids
            passage = index.passages(query, [best])[best]
            print(f"{query.text}\n  {best}: {passage.text.strip()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
