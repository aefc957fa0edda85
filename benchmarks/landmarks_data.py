"""Training data of the landmark model: example files for `lmk train`, and what was left out of them.

    python benchmarks/landmarks_data.py path/to/collections -o data [--seed 0]

The folder holds techdocs, train-pairs, squad-passages, scifact and qmsum with their training parts, and
the collections that the model is evaluated on; a part that is missing is passed over with a line. Each
file is jsonl with `id`, `query` and `positive`; SUMMARY.txt says what each is, its licence, and how many
of its examples were left out because their query, text, passage or title is one that is evaluated.
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

from lmkcli.data.collection import open_collection
from lmkcli.data.sources.python import Module, asked, installed, read_modules

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
RUN = 13  # words in a row that a training text shares with an evaluated one by copying alone
LONGEST = 40_000  # characters of a positive: beyond 8,192 positions nothing is read
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
    """How long the texts are, in characters, that hide a passage, and how few others there may be."""

    shortest: int
    longest: int
    fewest: int


HAYSTACK = Haystack(1_000, 12_000, 3)
SENTENCES = Haystack(400, 1_000, 2)  # nearly all of them below 256 tokens


class Source(NamedTuple):
    """One file: what it holds, under which licence, and how its examples are read."""

    about: str
    licence: str
    read: Callable[[], Iterable[Example]]


class Evaluated:
    """What the evaluation collections hold, to keep it out of training."""

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
                # Speakers count and repeat themselves: what two meetings share is not copied.
                self.runs.update(() if name.startswith("qmsum") else runs(doc.content))
            if name.startswith("squad"):
                self.titles.add(normal(doc.title))

    def why(self, example: Example) -> str:
        """What of the example is evaluated: 'query', 'text', 'passage', 'title', or '' for nothing."""
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
    """Words in lower case with one space between them, punctuation taken off."""
    return " ".join(re.findall(r"\w+", text.lower()))


def runs(text: str) -> set[int]:
    """Hashes of every RUN words in a row. Hashes of one process alone are compared."""
    words = normal(text).split()
    return {hash(tuple(words[at : at + RUN])) for at in range(len(words) - RUN + 1)}


class Reader:
    """Reads every part of the training data; `seed` decides what is drawn."""

    def __init__(self, folder: Path, seed: int, evaluated: Evaluated) -> None:
        self.folder, self.seed, self.evaluated = folder, seed, evaluated

    def pairs(self, path: str) -> Iterator[Example]:
        """A jsonl file with query and positive; numbered where it has no ids."""
        file = self.folder / path
        with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
            for number, line in enumerate(lines):
                record = json.loads(line)
                name = str(record.get("id", f"{file.name.split('.')[0]}-{number}"))
                yield Example(name, record["query"], record["positive"])

    def openings(self, path: str) -> Iterator[Example]:
        """The first paragraph of a page in whole sentences -> the page without it."""
        for page in self.pairs(path):
            found = paragraphs(page.positive)
            number = next((n for n, each in enumerate(found[:8]) if is_prose(each)), None)
            if number is not None:
                yield without(page, found, number, "opening")

    def parts(self, path: str, shortest: int = 6_000, most: int = 2) -> Iterator[Example]:
        """A paragraph from anywhere in a long page -> the page without it."""
        for page in self.pairs(path):
            found = paragraphs(page.positive)
            prose = [number for number, each in enumerate(found) if is_prose(each)]
            if len(page.positive) >= shortest and len(prose) >= 4:
                for number in self._chance(page.id).sample(prose, most):
                    yield without(page, found, number, f"part-{number}")

    def docstrings(self, shortest: int = 600, most: int = 1_500) -> Iterator[Example]:
        """First paragraph of a long docstring of a class or function -> its other paragraphs."""
        for package in packages():
            kept = []
            for name, module in sorted(read_modules(installed(package)).items()):
                for node in ast.walk(ast.parse(module.text)):
                    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                        first, *rest = (ast.get_docstring(node) or "").split("\n\n")
                        text = "\n\n".join(rest)
                        if 4 <= len(first.split()) <= 60 and len(text) >= shortest:
                            kept.append(
                                Example(f"{name}.{node.name}@docs", " ".join(first.split()), text)
                            )
            self._chance(f"{package} docs").shuffle(kept)
            yield from kept[:most]

    def judged(self, name: str) -> Iterator[Example]:
        """Every judged query of a collection with each document that answers it."""
        collection = open_collection(str(self.folder / name))
        texts = {doc.id: doc.content for doc in collection.docs()}
        queries = {query.id: query.text for query in collection.queries()}
        for qrel in collection.qrels():
            if qrel.grade > 0:
                yield Example(
                    f"{qrel.query_id}-{qrel.doc_id}", queries[qrel.query_id], texts[qrel.doc_id]
                )

    def slices(self, name: str, around: int) -> Iterator[Example]:
        """Every judged query -> the slice of its document that has most of its words, and `around` others.

        A word counts as much as the slices without it are many; slices stand in the document's order.
        """
        for example in self.judged(name):
            texts = sliced(example.positive)
            parts = [set(normal(text).split()) for text in texts]
            asked_for = set(normal(example.query).split())
            rare = {word: sum(word not in part for part in parts) for word in asked_for}
            weights = [sum(rare[word] for word in asked_for & part) for part in parts]
            best = weights.index(max(weights))
            others = [number for number in range(len(texts)) if number != best]
            chosen = self._chance(example.id).sample(others, min(around, len(others)))
            text = "\n".join(texts[number] for number in sorted([best, *chosen]))
            yield Example(f"{example.id}@slices-{around}", example.query, text)

    def utterances(self, name: str, most: int = 25, around: int = 1) -> Iterator[Example]:
        """What somebody says in a judged transcript -> the slice without it, and `around` others."""
        collection = open_collection(str(self.folder / name))
        texts = {doc.id: doc.content for doc in collection.docs()}
        for doc in sorted({qrel.doc_id for qrel in collection.qrels() if qrel.grade > 0}):
            slices, chance = sliced(texts[doc]), self._chance(doc, 1)
            lines = [(n, line) for n, text in enumerate(slices) for line in text.splitlines()]
            long = [(n, line) for n, line in lines if 15 <= len(said(line).split()) <= 60]
            for number, line in chance.sample(long, min(most, len(long))):
                others = [n for n in range(len(slices)) if n != number]
                chosen = {number, *chance.sample(others, min(around, len(others)))}
                rest = slices[number].replace(line + "\n", "").replace(line, "")
                text = "\n".join(rest if n == number else slices[n] for n in sorted(chosen))
                query = " ".join(said(line).split())
                yield Example(f"{doc}@said-{number}-{len(query)}", query, text)

    def functions(self, most: int = 3_000) -> Iterator[Example]:
        """First sentence of a docstring -> the function; at most so many of a package."""
        for package in packages():
            found = asked(installed(package))
            self._chance(package).shuffle(found)
            for function in found[:most]:
                yield Example(function.id, function.sentence, function.source)

    def modules(self) -> Iterator[Example]:
        """First paragraph of a module's docstring -> the module without it."""
        for module in self._modules(shortest=200):
            tree = ast.parse(module.text)
            paragraph = (ast.get_docstring(tree) or "").split("\n\n")[0]
            if len(paragraph.split()) >= 4 and len(paragraph) <= 400:
                body = tree.body[0]
                lines = module.text.splitlines(keepends=True)
                text = "".join(lines[: body.lineno - 1] + lines[body.end_lineno :])
                yield Example(module.name, " ".join(paragraph.split()), text)

    def inside(self, most: int = 2) -> Iterator[Example]:
        """First sentence of a function's docstring -> the long module that holds the function."""
        for module in self._modules(shortest=4_000):
            found = [each for each in module.functions if len(each.sentence.split()) >= 5]
            self._chance(module.name).shuffle(found)
            for function in found[:most]:
                yield Example(f"{function.id}@module", function.sentence, module.text)

    def _modules(self, shortest: int) -> Iterator[Module]:
        for package in packages():
            for module in read_modules(installed(package)).values():
                copied = (normal(each.source) in self.evaluated.texts for each in module.functions)
                if shortest <= len(module.text) and not any(copied):
                    yield module

    def haystacks(
        self, path: str, others: str, count: int, size: Haystack = HAYSTACK
    ) -> Iterator[Example]:
        """`count` pairs of a file, each positive hidden among passages of both files.

        Neighbours in a file are about the same thing, so those around a pair are none of its distractors.
        """
        chance, why = self._chance(path), self.evaluated.why
        pairs = [example for example in self.pairs(path) if not why(example)]
        pool = [example.positive for example in self.pairs(others) if not why(example)]
        for number in sorted(chance.sample(range(len(pairs)), min(count, len(pairs)))):
            away = [*range(number - 200), *range(number + 200, len(pairs))]
            passages = drawn(pairs, away, pool, chance)
            pair = pairs[number]
            text = hidden(pair.positive, passages, chance, size)
            yield Example(f"{pair.id}-hidden", pair.query, text)

    def _chance(self, name: str, draw: int = 0) -> random.Random:
        return random.Random(f"{self.seed + draw} {name}")


def paragraphs(text: str) -> list[str]:
    """What stands between empty lines."""
    return [each for each in re.split(r"\n\s*\n", text) if each.strip()]


def sliced(text: str, longest: int = 1_600) -> list[str]:
    """Whole lines, as many as fit into so many characters; a longer line stands alone."""
    slices = [""]
    for line in text.splitlines(keepends=True):
        if slices[-1] and len(slices[-1]) + len(line) > longest:
            slices.append("")
        slices[-1] += line
    return slices


def said(line: str) -> str:
    """The words of a line of a transcript, without who says them and what is noted of noises."""
    return re.sub(r"\{\w+\}", "", line.partition(": ")[2])


def is_prose(paragraph: str) -> bool:
    """8 to 80 words that end as a sentence does, nearly all of them words."""
    words = paragraph.split()
    plain = sum(word.strip(".,;:()'\"").replace("-", "").isalpha() for word in words)
    return 8 <= len(words) <= 80 and paragraph.strip().endswith(".") and plain >= 0.85 * len(words)


def without(page: Example, found: list[str], number: int, name: str) -> Example:
    """A paragraph as the query, without its heading in capitals; the others as the text."""
    rest = "\n\n".join(found[:number] + found[number + 1 :])
    query = re.sub(r"^\s*[A-Z][A-Z ]+\n", "", found[number])
    return Example(f"{page.id}@{name}", " ".join(query.split()), rest)


def drawn(
    pairs: list[Example], away: list[int], pool: list[str], chance: random.Random
) -> Iterator[str]:
    """Passages without end, half of them from the rows `away` of the pairs, half from the pool."""
    while True:
        yield pairs[chance.choice(away)].positive if chance.random() < 0.5 else chance.choice(pool)


def hidden(
    evidence: str, passages: Iterator[str], chance: random.Random, size: Haystack = HAYSTACK
) -> str:
    """The evidence anywhere among the passages; as many texts of each doubling of the length."""
    target = size.shortest * (size.longest / size.shortest) ** chance.random()
    chosen: list[str] = []
    while len(chosen) < size.fewest or (
        len(chosen) < 30 and len(evidence) + sum(map(len, chosen)) < target
    ):
        text = next(passages)
        chosen += [text] if text not in (evidence, *chosen) else []
    chosen.insert(chance.randint(0, len(chosen)), evidence)
    return "\n\n".join(chosen)


def packages() -> list[str]:
    """Those of PACKAGES that are installed here."""
    names = importlib.metadata.packages_distributions()
    return [package for package in PACKAGES if package in names]


def sources(reader: Reader) -> dict[str, Source]:
    """File name -> what it holds."""
    squad, fever = "train-pairs/squad-train-sentences.jsonl", "train-pairs/fever-evidence.jsonl"
    passages, wikipedia = "squad-passages/train.jsonl", "CC BY-SA (Wikipedia; SQuAD CC BY-SA 4.0)"
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
        "scifact": Source(
            "SciFact's training claims -> abstracts",
            "CC BY-NC 2.0 (claims), ODC-By (abstracts)",
            lambda: reader.pairs("scifact/train.jsonl"),
        ),
        "qmsum": Source(
            "questions about meetings -> the whole transcript",
            "MIT",
            lambda: reader.judged("qmsum:official-train"),
        ),
        "qmsum-slices": Source(
            "questions about meetings -> the slice of the transcript that has most of their words",
            "MIT",
            lambda: reader.slices("qmsum:official-train", 0),
        ),
        "qmsum-among": Source(
            "questions about meetings -> that slice among two others of the same transcript",
            "MIT",
            lambda: reader.slices("qmsum:official-train", 2),
        ),
        "qmsum-utterances": Source(
            "what somebody says -> the slice of the transcript around it, and another of the same",
            "MIT",
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
    """Write a file without what is evaluated and what is there twice; returns its lines of SUMMARY.txt."""
    out: Counter[str] = Counter()
    lengths: list[int] = []
    seen: set[tuple[str, str]] = set()
    with gzip.open(path, "wt", compresslevel=5) as file:
        for example in source.read():
            kept = example._replace(positive=example.positive.strip()[:LONGEST])
            key = normal(kept.query), normal(kept.positive)
            why = "empty" if not all(key) else "twice" if key in seen else evaluated.why(example)
            seen.add(key)
            out[why] += 1
            if not why:
                lengths.append(len(kept.positive))
                file.write(json.dumps(kept._asdict(), ensure_ascii=False) + "\n")
    left = ", ".join(f"{why} {count:,}" for why, count in sorted(out.items()) if why) or "nothing"
    mean, longest = (statistics.fmean(lengths), max(lengths)) if lengths else (0, 0)
    return (
        f"{path.name}: {len(lengths):,} examples, characters mean {mean:,.0f}, max {longest:,}\n"
        f"    {source.about}; {source.licence}\n    left out: {left}\n"
    )


def licences() -> Iterator[str]:
    """A line for each package: name, version, licence as its metadata states it."""
    names = importlib.metadata.packages_distributions()
    for package in packages():
        facts = importlib.metadata.metadata(names[package][0])
        classifiers = [line for line in facts.get_all("Classifier") or [] if "License" in line]
        classes = ", ".join(line.split("::")[-1].strip() for line in classifiers)
        stated = facts["License-Expression"] or classes or facts["License"] or "not stated"
        yield f"{facts['Name']} {facts['Version']}: {stated.splitlines()[0]}\n"


def main() -> None:
    """Write every file, or those that are named."""
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
    gc.freeze()  # its millions of hashes would be looked through at every collection
    (args.output / "PACKAGES.txt").write_text("".join(licences()))
    for name, source in sources(Reader(args.collections, args.seed, evaluated)).items():
        if not args.only or name in args.only:
            about = args.output / f"{name}.txt"
            try:
                about.write_text(write(args.output / f"{name}.jsonl.gz", source, evaluated))
            except FileNotFoundError as missing:
                about.write_text(f"{name}: left out, for {missing.filename} is not there\n")
            print(about.read_text(), end="", flush=True)
    written = [
        path.read_text() for path in sorted(args.output.glob("*.txt")) if path.stem.islower()
    ]
    (args.output / "SUMMARY.txt").write_text("".join(written))


if __name__ == "__main__":
    main()
