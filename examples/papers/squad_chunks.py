"""Cut the passages of SQuAD into chunks of several sizes: ConTEB, Figure 4 (left), arXiv 2505.24782 §6.

    python examples/papers/squad_chunks.py dev-v1.1.json squad 8 16 32 64 128
    lmk grid examples/papers/conteb-figure4-left.toml -o results

A size of N words gives the collection squad/N. Each passage is a document in chunks. The chunk in which the
annotated answer starts is relevant. A size above the length of all passages leaves them whole.
"""

import argparse
import json
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any


def starts_of(text: str, words: int) -> list[int]:
    """Return the offset of each chunk of `words` words; the last chunk may be shorter."""
    found = [word.start() for word in re.finditer(r"\S+", text)]
    return [0, *found[words::words]]


def write(passages: list[dict[str, Any]], words: int, folder: Path) -> None:
    """Write the passages in chunks of `words` words as a BEIR folder: corpus, queries and qrels."""
    (folder / "qrels").mkdir(parents=True)
    docs, queries, judged = [], [], ["query-id\tcorpus-id\tscore"]
    for number, passage in enumerate(passages):
        text = passage["context"]
        starts = starts_of(text, words)
        ends = [*starts[1:], len(text)]
        chunks = [text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
        docs.append({"_id": f"p{number}", "chunks": chunks})
        for asked in passage["qas"]:
            if not asked["answers"]:
                continue
            chunk = bisect_right(starts, asked["answers"][0]["answer_start"]) - 1
            queries.append({"_id": asked["id"], "text": asked["question"]})
            judged.append(f"{asked['id']}\tp{number}#{chunk}\t1")
    for name, rows in (("corpus", docs), ("queries", queries)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("\n".join(judged) + "\n", encoding="utf-8")


def main() -> None:
    """Write a collection for each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="dev-v1.1.json of SQuAD")
    parser.add_argument("output", type=Path, help="folder of the collections")
    parser.add_argument("words", type=int, nargs="+", help="sizes of chunks, in words")
    args = parser.parse_args()
    articles = json.loads(args.file.read_text(encoding="utf-8"))["data"]
    passages = [passage for article in articles for passage in article["paragraphs"]]
    for words in args.words:
        write(passages, words, args.output / str(words))


if __name__ == "__main__":
    main()
