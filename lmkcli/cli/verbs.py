"""The verbs as help shows them: which group each belongs to, what it does in a line, two examples."""

from typing import NamedTuple

START = """\
lmk: dense retrieval over documents of any length. Five lines to begin with:

  lmk demo                                             # all of it, in minutes
  lmk encode beir/scifact/test -m minilm -o vectors/   # documents to vectors
  lmk search vectors/ -q "does vitamin D help?"        # one question
  lmk search vectors/ beir/scifact/test -o run.trec    # all its queries
  lmk eval run.trec                                    # how good that is

A folder of your own goes in the place of beir/scifact/test: ./mydocs
'lmk --help' lists the commands, and 'lmk COMMAND -h' explains one."""


class Verb(NamedTuple):
    """What help says of a command beside its docstring and its flags."""

    group: str
    summary: str
    examples: tuple[str, ...]


VERBS = {
    "fetch": Verb(
        "Prepare",
        "Download collections and models before many jobs need them.",
        ("lmk fetch beir/scifact/test", "lmk fetch beir -m sentence-transformers/all-MiniLM-L6-v2"),
    ),
    "tokenize": Verb(
        "Prepare",
        "Documents to token ids; length statistics; how one text is placed.",
        (
            "lmk tokenize ./mydocs -m minilm -o tokens/",
            'lmk tokenize --show "some words" -m minilm --pool lmk --gran 2',
        ),
    ),
    "encode": Verb(
        "Prepare",
        "Documents to vectors.",
        (
            "lmk encode ./mydocs -m minilm -o vectors/",
            "lmk encode beir/scifact/test -m MODEL --pool lmk --gran 64 -o vectors/",
        ),
    ),
    "index": Verb(
        "Prepare",
        "Vectors to a FAISS index, or a collection to a BM25 index.",
        (
            "lmk index vectors/ -o index/",
            "lmk index beir/scifact/test --kind bm25 -o bm25/",
        ),
    ),
    "update": Verb(
        "Prepare",
        "Vectors and indexes of a collection that changed, in one step.",
        (
            "lmk update corpus.jsonl vectors/ index/",
            "lmk update beir/scifact/test vectors/ index/ bm25/",
        ),
    ),
    "compact": Verb(
        "Prepare",
        "Rewrite small parts of updated vectors into full ones.",
        ("lmk compact vectors/", "lmk compact vectors/ --keep-hours 1"),
    ),
    "import": Verb(
        "Prepare",
        "Vectors of another tool to a vectors folder.",
        (
            "lmk import vectors.npy --from numpy --ids ids.txt -m minilm -o vectors/",
            "lmk import theirs/ --from pyserini -m minilm -o vectors/",
        ),
    ),
    "export": Verb(
        "Prepare",
        "Vectors, training examples or a model for other tools.",
        (
            "lmk export vectors/ --to pyserini -o theirs/",
            "lmk export -m minilm --to sentence-transformers -o model/",
        ),
    ),
    "search": Verb(
        "Search",
        "Queries to ranked documents; fusion and reranking.",
        (
            "lmk search index/ beir/scifact/test -k 100 -o run.trec",
            'lmk search vectors/ -q "does vitamin D help?"',
        ),
    ),
    "eval": Verb(
        "Evaluate",
        "Runs to measures; tests between runs.",
        (
            "lmk eval run.trec -m nDCG@10 -m R@100",
            "lmk eval bm25.trec dense.trec --baseline bm25.trec",
        ),
    ),
    "plot": Verb(
        "Evaluate",
        "Scores of a log over a parameter, as a curve.",
        (
            "lmk plot scores.jsonl --x gran -m nDCG@10 -o curve.svg",
            "lmk plot model/ -o training.svg",
        ),
    ),
    "grid": Verb(
        "Evaluate",
        "Every combination of a file's settings, and one table.",
        (
            "lmk grid grid.toml -o results/ --dry-run",
            "lmk grid grid.toml -o results/ -j 2 -f latex",
        ),
    ),
    "analyze": Verb(
        "Evaluate",
        "Attention, lengths, maps: what models and vectors are like.",
        (
            "lmk analyze attention ./mydocs -m minilm --pool cls --pool lmk --gran 32 -o attention.svg",
            "lmk analyze map vectors/ --by chunk -o map.svg",
        ),
    ),
    "train": Verb(
        "Train",
        "Examples and a base model to a retrieval model.",
        (
            "lmk train pairs.jsonl -m BASE --pool lmk --gran 32,64,128 -o model/",
            "lmk train beir/scifact:train -m BASE --dev beir/scifact/test -o model/",
        ),
    ),
    "pretrain": Verb(
        "Train",
        "Texts alone to an encoder: masked tokens, RetroMAE, DupMAE, TITE.",
        (
            "lmk pretrain ./mydocs -m BASE -o model/",
            "lmk pretrain ./mydocs -m BASE --objective retromae --pool lmk --gran 256 -o model/",
        ),
    ),
    "show": Verb(
        "Inspect",
        "What an artifact is and where it came from; what names there are.",
        ("lmk show vectors/", "lmk show poolers"),
    ),
    "verify": Verb(
        "Inspect",
        "Encode a sample again and compare with the stored vectors.",
        ("lmk verify vectors/", "lmk verify vectors/ --sample 1000 --device cpu"),
    ),
    "repro": Verb(
        "Inspect",
        "Make recorded steps again and compare.",
        ("lmk repro run.trec", "lmk repro 'scores.jsonl#3' -o again/"),
    ),
    "doctor": Verb(
        "Inspect",
        "What works on this machine, and the line that mends what does not.",
        ("lmk doctor", "lmk doctor --thorough --json"),
    ),
    "demo": Verb(
        "Inspect",
        "All of it on a real collection, offline, in a few minutes.",
        ("lmk demo", "lmk demo /tmp/lmk-demo"),
    ),
}
