"""Table 24 of arXiv 2402.07440: nDCG@10 by the length of the documents that answer a query.

    lmk grid examples/papers/m2bert-table15.toml -o results
    python examples/papers/m2bert_table24.py results

The columns of a grid are collections, not groups of queries. So this script groups the queries of all runs
of Table 15. Lengths are in tokens of bert-base-uncased, the tokenizer of M2-BERT: own choice, the paper names
none. The rows are named after models and windows. Left out: M2-BERT-128 fine-tuned on LoCoV1, which is not
released.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any


def name_of(entry: dict[str, Any]) -> str:
    """Return the model and the window of an entry of the score log."""
    for each in entry["lineage"]:
        if each["kind"] == "vectors":
            made = each["facts"]["operation"]
            return f"{made['model']} {made.get('window') or ''}".strip()
    return "BM25"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, help="results of m2bert-table15.toml")
    parser.add_argument("--tokenizer", default="google-bert/bert-base-uncased")
    parser.add_argument("--bins", default="0,2000,8000,32000", help="edges, in tokens")
    args = parser.parse_args()
    lines = (args.results / "scores.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    words = ["lmk", "eval", *(entry["run"] for entry in entries)]
    for entry in entries:
        words += ["--name", name_of(entry)]
    words += ["-m", "nDCG@10", "--by", f"tokens:{args.tokenizer}", "--bins", args.bins]
    subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
