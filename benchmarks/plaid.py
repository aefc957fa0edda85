"""PLAID by fast-plaid next to benchmarks/late.py: the same vectors and queries, in an environment of its own.

    python benchmarks/late.py ./scifact=tokens --work folder --search exact --save
    python -m venv plaid && plaid/bin/pip install fast-plaid
    plaid/bin/python benchmarks/plaid.py folder/scifact-arrays --bits 4 2 --full-scores 432 4096

fast-plaid needs an older torch than lmk, so this script uses only NumPy, torch and fast-plaid. It prints the
columns of late.py without nDCG@10, and writes a run plaid-BITS-SCORES.trec into the folder for lmk eval.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from fast_plaid import search

DEPTH = 100


def texts(folder: Path, vectors: str, counts: str) -> list[torch.Tensor]:
    """Return the vectors of each text."""
    whole = torch.from_numpy(np.load(folder / vectors, mmap_mode="c"))
    return list(whole.split(np.load(folder / counts).tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", type=int, nargs="+", default=[4])
    parser.add_argument("--full-scores", type=int, nargs="+", default=[4096])
    parser.add_argument("--probes", type=int, default=8, help="clusters of a query vector")
    given = parser.parse_args()
    docs = texts(given.folder, "docs.npy", "counts.npy")
    queries = [each.half() for each in texts(given.folder, "queries.npy", "query-counts.npy")]
    truth = np.load(given.folder / "truth.npy")
    names = json.loads((given.folder / "names.json").read_text())
    for bits in given.bits:
        path = given.folder / f"plaid-{bits}"
        index = search.FastPlaid(index=str(path), device="cpu")
        took = path.with_suffix(".json")
        if not took.exists():
            start = time.perf_counter()
            index.create(documents_embeddings=docs, nbits=bits)
            took.write_text(json.dumps(time.perf_counter() - start))
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        for scores in given.full_scores:
            for _ in range(2):  # the first search reads the files
                start = time.perf_counter()
                found = index.search(
                    queries,
                    top_k=DEPTH,
                    n_full_scores=scores,
                    n_ivf_probe=given.probes,
                    show_progress=False,
                )
                seconds = time.perf_counter() - start
            pairs = zip(found, truth, strict=True)
            recall = np.mean(
                [np.isin(true, [row for row, _ in rows]).mean() for rows, true in pairs]
            )
            print(
                f"| PLAID, {bits} bits, {scores} scored | {size / len(docs):,.0f} | "
                f"{json.loads(took.read_text()):,.1f} | {len(queries) / seconds:,.1f} | {recall:.3f} |",
                flush=True,
            )
            if not names["docs"]:
                continue
            with open(given.folder / f"plaid-{bits}-{scores}.trec", "w") as file:
                for query, rows in zip(names["queries"], found, strict=True):
                    for rank, (row, score) in enumerate(rows, 1):
                        file.write(f"{query} Q0 {names['docs'][row]} {rank} {score} plaid\n")


if __name__ == "__main__":
    main()
