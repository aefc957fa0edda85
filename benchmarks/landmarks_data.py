"""Collect the training data of lmk-minilm: example files for `lmk train`, and a summary of omissions.

    python benchmarks/landmarks_data.py path/to/collections -o data [--seed 0]

The folder holds techdocs, train-pairs, squad-passages and qmsum with their training parts, and the
collections of the evaluation. If a part is missing, the script prints a line and continues. Each file
is jsonl with `id`, `query` and `positive`. SUMMARY.txt describes each file: its content, its licence, and
the number of examples left out because an evaluation collection has the same query, text, passage or title.
"""

import argparse
import ast
import gc
import gzip
import importlib.metadata
import json
import random
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lmkcli.data.collection import Collection, Qrel, open_collection
from lmkcli.plugins.generated.python_code import Module, package_tree, query_functions, read_modules

PROSE: tuple[str, ...] = (
    "peps",
    "qmsum:official-test",
    "scifact",
    "cranfield",
    "squad-passages",
    "squad-articles",
)
PROSE += tuple(f"xquad-{language}" for language in ("en", "de", "ar", "hi", "zh"))
SHARED = ("qmsum:official-test", "scifact")  # training and test search the same documents
COMMITTEES = ("covid_", "education_")  # of parliaments in QMSum: not every use of them is permitted
RUN = 13  # a training text and an evaluated one share this many consecutive words only by copying
LONGEST = 40_000  # characters of a positive: texts end at 8,192 positions anyway
PACKAGES = """accelerate authlib beartype bm25s click cryptography cyclopts datasets dns faiss fastapi
fastmcp flask fontTools formulaic fsspec huggingface_hub hypothesis ir_datasets jinja2 joblib jsonschema
lxml markdown_it matplotlib mcp more_itertools mpmath mypy narwhals networkx numpy onnxruntime
pandas peft PIL pyarrow pydantic pygments pyparsing pyserini requests rich scipy sentence_transformers
sklearn starlette statsmodels sympy tokenizers torch tqdm typer urllib3 uvicorn
werkzeug""".split()


class Example(NamedTuple):
    """One line of a file."""

    id: str
    query: str
    positive: str


class Haystack(NamedTuple):
    """Total length, in characters, of a text with a hidden passage, and the minimum number of distractors."""

    shortest: int
    longest: int
    fewest: int


HAYSTACK = Haystack(1_000, 12_000, 3)
SENTENCES = Haystack(400, 1_000, 2)  # nearly all of them below 256 tokens


class Source(NamedTuple):
    """One file: its content, its licence, and the function that reads its examples."""

    about: str
    licence: str
    read: Callable[[], Iterable[Example]]


class Evaluated:
    """Queries, texts, word runs and titles of the evaluation collections, to keep them out of training."""

    def __init__(self, folder: Path) -> None:
        self.queries: set[str] = set()
        self.texts: set[str] = set()
        self.runs: set[int] = set()
        self.titles: set[str] = set()
        for name in filter(lambda name: (folder / name.split(":")[0]).is_dir(), PROSE):
            self._add_prose(folder, name)
        for view in ("functions", "modules"):
            code = open_collection(f"stdlib/{view}")
            self.queries.update(normal(query.text) for query in code.queries())
            self.texts.update(normal(doc.text) for doc in code.docs())
        print(
            len(self.queries),
            "queries and",
            len(self.texts),
            "texts are evaluated",
            file=sys.stderr,
        )

    def _add_prose(self, folder: Path, name: str) -> None:
        collection = open_collection(str(folder / name))
        self.queries.update(normal(query.text) for query in collection.judged_queries())
        answers = {qrel.doc_id for qrel in collection.qrels() if qrel.grade > 0}
        for doc in collection.docs():
            if doc.id in answers or name not in SHARED:
                self.texts.update(map(normal, (doc.text, doc.content)))
                # Speakers count and repeat themselves: shared words of two meetings are not copies.
                self.runs.update(() if name.startswith("qmsum") else runs(doc.content))
            if name.startswith("squad"):
                self.titles.add(normal(doc.title))

    def overlap(self, example: Example) -> str:
        """Return the overlap with the evaluation: 'query', 'text', 'passage', 'title', or '' for none."""
        query, text = normal(example.query), normal(example.positive)
        if query in self.queries:
            return "query"
        if text in self.texts:
            return "text"
        if not self.runs.isdisjoint(runs(example.positive)):
            return "passage"
        starts = {" ".join(part.split()[:n]) for part in (query, text) for n in range(1, 6)}
        return "" if self.titles.isdisjoint(starts) else "title"


def normal(text: str) -> str:
    """Return the words in lower case, separated by one space, without punctuation."""
    return " ".join(re.findall(r"\w+", text.lower()))


def runs(text: str) -> set[int]:
    """Return hashes of every RUN consecutive words. Compare only hashes of the same process."""
    words = normal(text).split()
    return {hash(tuple(words[at : at + RUN])) for at in range(len(words) - RUN + 1)}


class Reader:
    """Readers of all parts of the training data; `seed` determines the random draws."""

    def __init__(self, folder: Path, seed: int, evaluated: Evaluated) -> None:
        self.folder, self.seed, self.evaluated = folder, seed, evaluated

    def pairs(self, path: str) -> Iterator[Example]:
        """Read a jsonl file with query and positive; records without an id get a number."""
        file = self.folder / path
        with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
            for number, line in enumerate(lines):
                record = json.loads(line)
                name = str(record.get("id", f"{file.name.split('.')[0]}-{number}"))
                yield Example(name, record["query"], record["positive"])

    def openings(self, path: str) -> Iterator[Example]:
        """Yield (first paragraph of whole sentences, the page without it)."""
        for page in self.pairs(path):
            found = paragraphs(page.positive)
            number = next((n for n, each in enumerate(found[:8]) if is_prose(each)), None)
            if number is not None:
                yield without(page, found, number, "opening")

    def parts(self, path: str, shortest: int = 6_000, most: int = 2) -> Iterator[Example]:
        """Yield (a paragraph from anywhere in a long page, the page without it)."""
        for page in self.pairs(path):
            found = paragraphs(page.positive)
            prose = [number for number, each in enumerate(found) if is_prose(each)]
            if len(page.positive) >= shortest and len(prose) >= 4:
                for number in self._rng(page.id).sample(prose, most):
                    yield without(page, found, number, f"part-{number}")

    def docstrings(self, shortest: int = 600, most: int = 1_500) -> Iterator[Example]:
        """Yield (first paragraph of a long docstring of a class or function, its other paragraphs)."""
        for package in packages():
            kept = []
            for name, module in sorted(read_modules(package_tree(package)).items()):
                for node in ast.walk(ast.parse(module.text)):
                    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                        first, *rest = (ast.get_docstring(node) or "").split("\n\n")
                        text = "\n\n".join(rest)
                        if 4 <= len(first.split()) <= 60 and len(text) >= shortest:
                            kept.append(
                                Example(f"{name}.{node.name}@docs", " ".join(first.split()), text)
                            )
            self._rng(f"{package} docs").shuffle(kept)
            yield from kept[:most]

    def judged(self, name: str) -> Iterator[Example]:
        """Yield every judged query of a collection with each document that answers it."""
        collection = open_collection(str(self.folder / name))
        texts = {doc.id: doc.content for doc in collection.docs()}
        queries = {query.id: query.text for query in collection.queries()}
        for qrel in usable(collection):
            yield Example(
                f"{qrel.query_id}-{qrel.doc_id}", queries[qrel.query_id], texts[qrel.doc_id]
            )

    def slices(self, name: str, around: int) -> Iterator[Example]:
        """Yield every judged query with the best slice of its document and `around` other slices.

        The best slice has the highest total weight of the query's words. The weight of a word is the number
        of slices without it. The slices keep the document's order.
        """
        for example in self.judged(name):
            texts = sliced(example.positive)
            parts = [set(normal(text).split()) for text in texts]
            query_words = set(normal(example.query).split())
            rare = {word: sum(word not in part for part in parts) for word in query_words}
            weights = [sum(rare[word] for word in query_words & part) for part in parts]
            best = weights.index(max(weights))
            others = [number for number in range(len(texts)) if number != best]
            chosen = self._rng(example.id).sample(others, min(around, len(others)))
            text = "\n".join(texts[number] for number in sorted([best, *chosen]))
            yield Example(f"{example.id}@slices-{around}", example.query, text)

    def utterances(self, name: str, most: int = 25, around: int = 1) -> Iterator[Example]:
        """Yield utterances of judged transcripts with their slice (without them) and `around` others."""
        collection = open_collection(str(self.folder / name))
        texts = {doc.id: doc.content for doc in collection.docs()}
        for doc in sorted({qrel.doc_id for qrel in usable(collection)}):
            slices, rng = sliced(texts[doc]), self._rng(doc, 1)
            lines = [(n, line) for n, text in enumerate(slices) for line in text.splitlines()]
            long = [(n, line) for n, line in lines if 15 <= len(utterance(line).split()) <= 60]
            for number, line in rng.sample(long, min(most, len(long))):
                others = [n for n in range(len(slices)) if n != number]
                chosen = {number, *rng.sample(others, min(around, len(others)))}
                rest = slices[number].replace(line + "\n", "").replace(line, "")
                text = "\n".join(rest if n == number else slices[n] for n in sorted(chosen))
                query = " ".join(utterance(line).split())
                yield Example(f"{doc}@said-{number}-{len(query)}", query, text)

    def functions(self, most: int = 3_000) -> Iterator[Example]:
        """Yield (first sentence of a docstring, the function); at most `most` per package."""
        for package in packages():
            found = query_functions(package_tree(package))
            self._rng(package).shuffle(found)
            for function in found[:most]:
                yield Example(function.id, function.sentence, function.source)

    def modules(self) -> Iterator[Example]:
        """Yield (first paragraph of a module's docstring, the module without it)."""
        for module in self._modules(shortest=200):
            tree = ast.parse(module.text)
            paragraph = (ast.get_docstring(tree) or "").split("\n\n")[0]
            if len(paragraph.split()) >= 4 and len(paragraph) <= 400:
                body = tree.body[0]
                lines = module.text.splitlines(keepends=True)
                text = "".join(lines[: body.lineno - 1] + lines[body.end_lineno :])
                yield Example(module.name, " ".join(paragraph.split()), text)

    def inside(self, most: int = 2) -> Iterator[Example]:
        """Yield (first sentence of a function's docstring, the long module with the function)."""
        for module in self._modules(shortest=4_000):
            found = [each for each in module.functions if len(each.sentence.split()) >= 5]
            self._rng(module.name).shuffle(found)
            for function in found[:most]:
                yield Example(f"{function.id}@module", function.sentence, module.text)

    def _modules(self, shortest: int) -> Iterator[Module]:
        for package in packages():
            for module in read_modules(package_tree(package)).values():
                copied = (normal(each.source) in self.evaluated.texts for each in module.functions)
                if shortest <= len(module.text) and not any(copied):
                    yield module

    def haystacks(
        self, path: str, others: str, count: int, size: Haystack = HAYSTACK
    ) -> Iterator[Example]:
        """Yield `count` pairs of a file, each positive hidden among passages of both files.

        Neighbours in a file have the same topic, so the passages near a pair are not its distractors.
        """
        rng, overlap = self._rng(path), self.evaluated.overlap
        pairs = [example for example in self.pairs(path) if not overlap(example)]
        pool = [example.positive for example in self.pairs(others) if not overlap(example)]
        for number in sorted(rng.sample(range(len(pairs)), min(count, len(pairs)))):
            away = [*range(number - 200), *range(number + 200, len(pairs))]
            passages = distractors(pairs, away, pool, rng)
            pair = pairs[number]
            text = hide(pair.positive, passages, rng, size)
            yield Example(f"{pair.id}-hidden", pair.query, text)

    def _rng(self, name: str, draw: int = 0) -> random.Random:
        return random.Random(f"{self.seed + draw} {name}")


def usable(collection: Collection) -> Iterator[Qrel]:
    """Yield the judgements of relevant documents, except of the meetings of parliaments' committees."""
    for qrel in collection.qrels():
        if qrel.grade > 0 and not qrel.doc_id.startswith(COMMITTEES):
            yield qrel


def paragraphs(text: str) -> list[str]:
    """Return the parts between empty lines."""
    return [each for each in re.split(r"\n\s*\n", text) if each.strip()]


def sliced(text: str, longest: int = 1_600) -> list[str]:
    """Cut at line ends into slices of at most `longest` characters; a longer line is its own slice."""
    slices = [""]
    for line in text.splitlines(keepends=True):
        if slices[-1] and len(slices[-1]) + len(line) > longest:
            slices.append("")
        slices[-1] += line
    return slices


def utterance(line: str) -> str:
    """Return the spoken words of a transcript line, without the speaker's name and notes of noises."""
    return re.sub(r"\{\w+\}", "", line.partition(": ")[2])


def is_prose(paragraph: str) -> bool:
    """Test for 8 to 80 words, nearly all of them alphabetic, with a full stop at the end."""
    words = paragraph.split()
    plain = sum(word.strip(".,;:()'\"").replace("-", "").isalpha() for word in words)
    return 8 <= len(words) <= 80 and paragraph.strip().endswith(".") and plain >= 0.85 * len(words)


def without(page: Example, found: list[str], number: int, name: str) -> Example:
    """Make an example: one paragraph (without its heading in capitals) is the query, the rest the text."""
    rest = "\n\n".join(found[:number] + found[number + 1 :])
    query = re.sub(r"^\s*[A-Z][A-Z ]+\n", "", found[number])
    return Example(f"{page.id}@{name}", " ".join(query.split()), rest)


def distractors(
    pairs: list[Example], away: list[int], pool: list[str], rng: random.Random
) -> Iterator[str]:
    """Yield passages forever: half from the rows `away` of the pairs, half from the pool."""
    while True:
        yield pairs[rng.choice(away)].positive if rng.random() < 0.5 else rng.choice(pool)


def hide(
    evidence: str, passages: Iterator[str], rng: random.Random, size: Haystack = HAYSTACK
) -> str:
    """Insert the evidence at a random place among the passages; the log of the length is uniform."""
    target = size.shortest * (size.longest / size.shortest) ** rng.random()
    chosen: list[str] = []
    while len(chosen) < size.fewest or (
        len(chosen) < 30 and len(evidence) + sum(map(len, chosen)) < target
    ):
        text = next(passages)
        chosen += [text] if text not in (evidence, *chosen) else []
    chosen.insert(rng.randint(0, len(chosen)), evidence)
    return "\n\n".join(chosen)


def packages() -> list[str]:
    """Return the installed packages of PACKAGES."""
    names = importlib.metadata.packages_distributions()
    return [package for package in PACKAGES if package in names]


def sources(reader: Reader) -> dict[str, Source]:
    """Map each file name to its source."""
    squad, fever = "train-pairs/squad-train-sentences.jsonl", "train-pairs/fever-evidence.jsonl"
    passages, wikipedia = "squad-passages/train.jsonl", "CC BY-SA (Wikipedia; SQuAD CC BY-SA 4.0)"
    meetings = "MIT (QMSum), CC BY 4.0 (the meetings of AMI and ICSI)"
    code = "that of each package (PACKAGES.txt)"
    return {
        "techdocs": Source(
            "one-line descriptions of technical pages -> the pages without them",
            "CC BY 4.0 (Microsoft's C++ and PowerShell documentation), licences of the man-pages",
            lambda: reader.pairs("techdocs/train.jsonl.gz"),
        ),
        "techdocs-openings": Source(
            "the first paragraph of a technical page -> the page without it",
            "as techdocs",
            lambda: reader.openings("techdocs/train.jsonl.gz"),
        ),
        "techdocs-parts": Source(
            "a paragraph from anywhere in a long technical page -> the page without it",
            "as techdocs",
            lambda: reader.parts("techdocs/train.jsonl.gz"),
        ),
        "python-docstrings": Source(
            "first paragraph of a long docstring -> its other paragraphs", code, reader.docstrings
        ),
        "squad-sentences": Source(
            "SQuAD questions -> the sentence with the answer",
            wikipedia,
            lambda: reader.pairs(squad),
        ),
        "squad-passages": Source(
            "SQuAD questions -> the passage with the answer",
            wikipedia,
            lambda: reader.pairs(passages),
        ),
        "fever": Source(
            "FEVER claims -> the sentences that decide them",
            "CC BY-SA 3.0 (Wikipedia)",
            lambda: reader.pairs(fever),
        ),
        "qmsum": Source(
            "questions about meetings -> the whole transcript",
            meetings,
            lambda: reader.judged("qmsum:official-train"),
        ),
        "qmsum-slices": Source(
            "questions about meetings -> the slice of the transcript with most of their words",
            meetings,
            lambda: reader.slices("qmsum:official-train", 0),
        ),
        "qmsum-among": Source(
            "questions about meetings -> that slice between two others of the same transcript",
            meetings,
            lambda: reader.slices("qmsum:official-train", 2),
        ),
        "qmsum-utterances": Source(
            "an utterance -> the slice of the transcript around it, and another of the same",
            meetings,
            lambda: reader.utterances("qmsum:official-train"),
        ),
        "python-functions": Source(
            "first sentence of a function's docstring -> its source", code, reader.functions
        ),
        "python-modules": Source(
            "first paragraph of a module's docstring -> its source", code, reader.modules
        ),
        "python-inside": Source(
            "first sentence of a function's docstring -> the module around it", code, reader.inside
        ),
        "haystack-squad": Source(
            "SQuAD questions -> their passage among 3 to 30 others",
            wikipedia,
            lambda: reader.haystacks(passages, fever, 4_000),
        ),
        "haystack-fever": Source(
            "FEVER claims -> their sentences among 3 to 30 passages",
            wikipedia,
            lambda: reader.haystacks(fever, passages, 6_000),
        ),
        "haystack-sentences": Source(
            "SQuAD questions -> the sentence with the answer among 2 or more others",
            wikipedia,
            lambda: reader.haystacks(squad, fever, 12_000, SENTENCES),
        ),
        "haystack-claims": Source(
            "FEVER claims -> their sentences among 2 or more others",
            wikipedia,
            lambda: reader.haystacks(fever, squad, 12_000, SENTENCES),
        ),
    }


def write(path: Path, source: Source, evaluated: Evaluated) -> str:
    """Write a file without evaluated and repeated examples; return its lines of SUMMARY.txt."""
    left_out: Counter[str] = Counter()
    lengths: list[int] = []
    seen: set[tuple[str, str]] = set()
    with gzip.open(path, "wt", compresslevel=5) as file:
        for example in source.read():
            kept = example._replace(positive=example.positive.strip()[:LONGEST])
            key = normal(kept.query), normal(kept.positive)
            known = "empty" if not all(key) else "repeated" if key in seen else ""
            reason = known or evaluated.overlap(example)
            seen.add(key)
            left_out[reason] += 1
            if not reason:
                lengths.append(len(kept.positive))
                file.write(json.dumps(kept._asdict(), ensure_ascii=False) + "\n")
    reasons = [f"{reason} {count:,}" for reason, count in sorted(left_out.items()) if reason]
    mean, longest = (statistics.fmean(lengths), max(lengths)) if lengths else (0, 0)
    return (
        f"{path.name}: {len(lengths):,} examples, characters mean {mean:,.0f}, max {longest:,}\n"
        f"    {source.about}; {source.licence}\n    left out: {', '.join(reasons) or 'nothing'}\n"
    )


def licences() -> Iterator[str]:
    """Yield a line for each package: name, version, and the licence in its metadata."""
    names = importlib.metadata.packages_distributions()
    for package in packages():
        facts = importlib.metadata.metadata(names[package][0])
        classifiers = [line for line in facts.get_all("Classifier") or [] if "License" in line]
        classes = ", ".join(line.split("::")[-1].strip() for line in classifiers)
        stated = facts["License-Expression"] or classes or facts["License"] or "not stated"
        yield f"{facts['Name']} {facts['Version']}: {stated.splitlines()[0]}\n"


def main() -> None:
    """Write all files, or those given by --only."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("collections", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", nargs="+", metavar="FILE", help="names of files, such as techdocs"
    )
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    evaluated = Evaluated(args.collections)
    gc.freeze()  # otherwise every garbage collection scans the millions of hashes
    (args.output / "PACKAGES.txt").write_text("".join(licences()))
    for name, source in sources(Reader(args.collections, args.seed, evaluated)).items():
        if not args.only or name in args.only:
            about = args.output / f"{name}.txt"
            try:
                about.write_text(write(args.output / f"{name}.jsonl.gz", source, evaluated))
            except FileNotFoundError as missing:
                about.write_text(f"{name}: left out, because {missing.filename} is missing\n")
            print(about.read_text(), end="", flush=True)
    written = [
        path.read_text() for path in sorted(args.output.glob("*.txt")) if path.stem.islower()
    ]
    (args.output / "SUMMARY.txt").write_text("".join(written))


if __name__ == "__main__":
    main()
