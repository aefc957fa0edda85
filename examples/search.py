"""Encode a collection, search it, and score the run: python examples/search.py [MODEL]"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import lmkcli

KITCHEN = str(Path(__file__).parent / "kitchen")
FP32 = lmkcli.EncodeSettings(dtype="fp32")  # the same numbers on every machine


def main(model: str = "minilm") -> None:
    """Print the best document of each query, then two measures of the whole run."""
    collection = lmkcli.open_collection(KITCHEN)
    queries = collection.judged_queries()
    with TemporaryDirectory() as folder:
        lmkcli.encode_collection(KITCHEN, Path(folder), model, settings=FP32)
        index = lmkcli.open_index(folder)
        run = index.search(queries, k=10)
    for query in queries:
        print(f"{query.text} -> {run.rankings[query.id].doc_ids[0]}")
    measures = lmkcli.parse_measures(["nDCG@10", "R@1"])
    for measure, value in lmkcli.evaluate(run, collection.qrels(), measures).aggregated.items():
        print(f"{measure} {value:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
