"""How often `lmk search FOLDER` prints "no good match", with and without an answer in the collection.

    python benchmarks/no_good_match.py ./cranfield ./squad-passages ./scifact,subset=1500 -o work

Collections have BEIR's layout, with or without options. Each is indexed as `lmk search FOLDER` does: vectors
and BM25 of chunks, or with --models words BM25 alone. The table has a row for each model and collection, and
these columns:

- found: shares of the questions with a relevant document among the first ten hits. The note is a false alarm.
- without: the same questions; hits that are relevant do not count. The note is right. (They are removed from
  the hits, not from the index, so the words have the weights of the whole collection.)
- NAME: questions of another collection, drawn with a fixed seed. The note is right.

The output folder keeps the indexes, and a second run uses them.
"""

import argparse
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import lmkcli
from lmkcli.data.collection import Query
from lmkcli.data.run import Ranking
from lmkcli.plugins.documents.documents_index import MATCH, WORDS, DocumentsIndex
from lmkcli.plugins.documents.own_index import CHUNK
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.pipeline import open_pipeline
from lmkcli.retrieval.stages import Stages

SHOWN = 10  # hits that a user sees
DEPTH = 100  # hits that are read, to find one that is not relevant
WORDS_ALONE = "words"  # the name of the row without a model
SEED = 1


def opened(collection: str, model: str, folder: Path) -> DocumentsIndex:
    """Make the indexes of a collection unless they exist, and open them as `lmk search FOLDER` does."""
    chunks = {"unit": "chunk", "gran": str(CHUNK), "context": "headings"}
    folder.mkdir(parents=True, exist_ok=True)
    words = folder / "bm25"
    lmkcli.BuildIndex(collection, kind="bm25", output=words, **chunks).run()
    if model == WORDS_ALONE:
        index = open_pipeline(Stages([words], WORDS), OpenSettings())
        return DocumentsIndex(index, collection, "")
    vectors = folder / f"{model}-vectors"
    lmkcli.Encode(collection, model=model, window="chunk", output=vectors, **chunks).run()
    index = open_pipeline(Stages([vectors, words], MATCH), OpenSettings())
    return DocumentsIndex(index, collection, model)


class Judged:
    """The judged questions of a collection, and their relevant documents."""

    def __init__(self, collection: str) -> None:
        source = lmkcli.open_collection(collection)
        self.relevant: dict[str, set[str]] = {}
        for qrel in source.qrels():
            if qrel.grade > 0:
                self.relevant.setdefault(qrel.query_id, set()).add(qrel.doc_id)
        self.questions = [each for each in source.queries() if each.id in self.relevant]

    def drawn(self, number: int) -> list[Query]:
        """Some of the questions, the same ones each time."""
        return random.Random(SEED).sample(self.questions, min(number, len(self.questions)))


def warned(index: DocumentsIndex, asked: Iterable[tuple[Query, Ranking]]) -> str:
    """The share of the questions for which the note appears, and their number."""
    notes = [index.is_answered(query, ranking) is False for query, ranking in asked]
    return f"{100 * sum(notes) / len(notes):.1f} % of {len(notes):,}" if notes else "-"


def without(ranking: Ranking, relevant: set[str]) -> Ranking:
    """A ranking without the relevant documents."""
    kept = [place for place, doc_id in enumerate(ranking.doc_ids) if doc_id not in relevant]
    return Ranking([ranking.doc_ids[place] for place in kept], ranking.scores[kept])


def row(
    index: DocumentsIndex, own: Judged, others: dict[str, Judged], foreign: int
) -> Iterator[str]:
    """The cells of a row: found, without, and questions of each other collection."""
    run = index.search(own.questions, DEPTH)
    found = [
        (query, run[query.id], own.relevant[query.id])
        for query in own.questions
        if own.relevant[query.id] & {*run[query.id].doc_ids[:SHOWN]}
    ]
    yield warned(index, ((query, ranking) for query, ranking, _ in found))
    yield warned(index, ((query, without(ranking, answers)) for query, ranking, answers in found))
    for other in others.values():
        if other is own:
            yield "-"
            continue
        asked = other.drawn(foreign)
        answers = index.search(asked, SHOWN)
        yield warned(index, ((query, answers[query.id]) for query in asked))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("collections", nargs="+", metavar="COLLECTION")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the indexes")
    parser.add_argument("--models", nargs="+", default=["mean-minilm", WORDS_ALONE])
    parser.add_argument("--foreign", type=int, default=300, help="questions of another collection")
    given = parser.parse_args()
    names = {each: Path(each.partition(",")[0]).name for each in given.collections}
    judged = {names[each]: Judged(each) for each in given.collections}
    print("| model | collection | found | without | " + " | ".join(judged) + " |")
    print("|---|---|" + "---:|" * (2 + len(judged)))
    for model in given.models:
        for collection in given.collections:
            name = names[collection]
            index = opened(collection, model, given.output / name)
            cells = row(index, judged[name], judged, given.foreign)
            print(f"| {model} | {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
