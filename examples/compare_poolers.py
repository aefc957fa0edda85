"""One model, several ways of pooling, one table: python examples/compare_poolers.py [MODEL]

A model is best with the pooling of its training; all-MiniLM-L6-v2 was trained with mean pooling.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import lmkcli
from lmkcli import RecipeOptions

KITCHEN = str(Path(__file__).parent / "kitchen")
FP32 = lmkcli.EncodeSettings(dtype="fp32")  # the same numbers on every machine
POOLINGS = {
    "mean": RecipeOptions(pool="mean"),
    "cls": RecipeOptions(pool="cls"),
    "landmarks every 32 tokens": RecipeOptions(pool="lmk", gran="32"),
    "a landmark after each sentence": RecipeOptions(pool="lmk", gran="sentence"),
}


def main(model: str = "minilm") -> None:
    """Print nDCG@10 of each pooling."""
    for name, options in POOLINGS.items():
        print(f"{ndcg(model, options):.2f}  {name}")


def ndcg(model: str, options: RecipeOptions) -> float:
    """Return nDCG@10 of exact search over embeddings that are pooled with `options`."""
    collection = lmkcli.open_collection(KITCHEN)
    with TemporaryDirectory() as folder:
        lmkcli.encode_collection(KITCHEN, Path(folder), model, options, FP32)
        index = lmkcli.open_index(folder)
        run = index.search(collection.judged_queries(), k=10)
    [measure] = lmkcli.parse_measures(["nDCG@10"])
    return lmkcli.evaluate(run, collection.qrels(), [measure]).aggregated["nDCG@10"]


if __name__ == "__main__":
    main(*sys.argv[1:])
