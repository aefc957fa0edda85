r"""Make training sets of LoCoV1 from the datasets that it is drawn from: arXiv 2402.07440 App. A.1.

    python examples/papers/loco_train.py sources loco-train
    lmk train $(printf '%s:train,per-query=32 ' ./loco-train/*) \
        --config examples/m2bert-retrieval.toml -o model

The folder `sources` contains these files, unpacked, with the names that their publishers gave them:

    tau/scrolls on the hub        summ_screen_fd/train.jsonl, gov_report/train.jsonl, qmsum/train.jsonl
    QASPER                        qasper-train-v0.3.json
    THUDM/LongBench on the hub    data/multifieldqa_en_e.jsonl, also 2wikimqa_e and passage_retrieval_en_e
    hazyresearch/LoCoV1-Documents documents/multifieldqa_test.jsonl, also 2wikimqa and passage_retrieval

Each of the eight datasets becomes a BEIR folder. Each query has its document and 32 other documents of the
dataset, drawn at random, which are judged irrelevant (App. A.3). LongBench has no training sets: the paper
trains with the documents that LoCoV1 does not test. The sets of CourtListener, Australian cases and
StackOverflow are not released.
"""

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

NEGATIVES = 32  # App. A.3
LONGBENCH = {
    "multifieldqa": "multifieldqa_en_e",
    "2wikimqa": "2wikimqa_e",
    "passage_retrieval": "passage_retrieval_en_e",
}


class Pair(NamedTuple):
    """A query and the text of the document that answers it."""

    query: str
    text: str


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a jsonl file."""
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def scrolls(path: Path, *, asked: bool = False) -> Iterator[Pair]:
    """Yield summaries with their texts; with `asked`, each text starts with a question, which is removed."""
    for row in rows(path):
        text = row["input"].partition("\n\n")[2] if asked else row["input"]
        yield Pair(row["output"], text)


def qasper(path: Path, field: str) -> Iterator[Pair]:
    """Yield titles or abstracts with the sections of their papers, as Table 13 shows them."""
    for paper in json.loads(path.read_text(encoding="utf-8")).values():
        sections = [
            ": ".join(filter(None, (each["section_name"], " ".join(each["paragraphs"]))))
            for each in paper["full_text"]
        ]
        yield Pair(paper[field], "\n".join(sections))


def longbench(path: Path, tested: Path) -> Iterator[Pair]:
    """Yield the questions about documents that are not in the test set."""
    texts = {row["passage"].strip() for row in rows(tested)}
    pairs = [Pair(row["input"], row["context"]) for row in rows(path)]
    missing = len(texts - {pair.text.strip() for pair in pairs})
    if missing:
        raise SystemExit(
            f"{path} lacks {missing} of the {len(texts)} documents in {tested}: test data would stay in it; "
            "use LongBench-E (the files with _e) and documents of the same dataset"
        )
    yield from (pair for pair in pairs if pair.text.strip() not in texts)


def write(pairs: Iterable[Pair], folder: Path) -> None:
    """Write a BEIR folder with the split train. Equal texts are one document; empty texts are left out."""
    kept = [pair for pair in pairs if pair.query.strip() and pair.text.strip()]
    numbers = {text: n for n, text in enumerate(dict.fromkeys(pair.text for pair in kept))}
    draws = random.Random(folder.name)
    judged = ["query-id\tcorpus-id\tscore"]
    for n, pair in enumerate(kept):
        answer = numbers[pair.text]
        others = draws.sample(range(len(numbers)), min(NEGATIVES + 1, len(numbers)))
        judged.append(f"q{n}\td{answer}\t1")
        judged += [f"q{n}\td{other}\t0" for other in [o for o in others if o != answer][:NEGATIVES]]
    (folder / "qrels").mkdir(parents=True)
    (folder / "qrels" / "train.tsv").write_text("\n".join(judged) + "\n", encoding="utf-8")
    for name, texts in (("corpus", numbers), ("queries", [pair.query for pair in kept])):
        letter = name[0].replace("c", "d")
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for n, text in enumerate(texts):
                file.write(json.dumps({"_id": f"{letter}{n}", "text": text}) + "\n")


def main() -> None:
    """Write the training sets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sources", type=Path, help="folder with the published files")
    parser.add_argument("output", type=Path, help="folder of the training sets")
    args = parser.parse_args()
    for name in ("summ_screen_fd", "gov_report", "qmsum"):
        pairs = scrolls(args.sources / name / "train.jsonl", asked=name == "qmsum")
        write(pairs, args.output / name)
    for field in ("title", "abstract"):
        write(
            qasper(args.sources / "qasper-train-v0.3.json", field), args.output / f"qasper_{field}"
        )
    for name, file in LONGBENCH.items():
        tested = args.sources / "documents" / f"{name}_test.jsonl"
        write(longbench(args.sources / "data" / f"{file}.jsonl", tested), args.output / name)


if __name__ == "__main__":
    main()
