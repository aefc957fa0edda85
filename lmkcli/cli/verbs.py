"""The commands on help pages: their groups, one line about each, and two examples."""

from typing import NamedTuple

START = """\
lmk: dense retrieval over documents of any length. Six commands to start with:

  lmk search ./mydocs -q "how do I reset it?"          # ask a folder of your documents
  lmk demo                                             # the main steps, in a minute
  lmk encode beir/scifact/test -m minilm -o vectors/   # documents to vectors
  lmk search vectors/ -q "does vitamin D help?"        # search for one question
  lmk search vectors/ beir/scifact/test -o run.trec    # search for all queries
  lmk eval run.trec                                    # measure the quality

Use your own folder instead of beir/scifact/test, such as ./mydocs.
'lmk --help' lists all commands, and 'lmk COMMAND -h' explains one."""


class Verb(NamedTuple):
    """The text of a command on help pages, in addition to its docstring and its flags."""

    group: str
    summary: str
    examples: tuple[str, ...]


VERBS = {
    "fetch": Verb(
        "Prepare",
        "Download collections and models in advance.",
        ("lmk fetch beir/scifact/test", "lmk fetch beir -m sentence-transformers/all-MiniLM-L6-v2"),
    ),
    "tokenize": Verb(
        "Prepare",
        "Convert documents to token ids; print length statistics.",
        (
            "lmk tokenize ./mydocs -m minilm -o tokens/",
            'lmk tokenize --show "some words" -m minilm --pool lmk --gran 2',
        ),
    ),
    "encode": Verb(
        "Prepare",
        "Encode documents into vectors.",
        (
            "lmk encode ./mydocs -m minilm -o vectors/",
            "lmk encode beir/scifact/test -m MODEL --pool lmk --gran 64 -o vectors/",
        ),
    ),
    "index": Verb(
        "Prepare",
        "Build an index: FAISS, Milvus, BM25 or Lucene.",
        (
            "lmk index vectors/ -o index/",
            "lmk index beir/scifact/test --kind bm25 -o bm25/",
        ),
    ),
    "update": Verb(
        "Prepare",
        "Update vectors and indexes after a change of their collection.",
        (
            "lmk update corpus.jsonl vectors/ index/",
            "lmk update beir/scifact/test vectors/ index/ bm25/",
        ),
    ),
    "compact": Verb(
        "Prepare",
        "Merge the small parts of updated vectors.",
        ("lmk compact vectors/", "lmk compact vectors/ --keep-hours 1"),
    ),
    "import": Verb(
        "Prepare",
        "Import vectors from another tool.",
        (
            "lmk import vectors.npy --from numpy --ids ids.txt -m minilm -o vectors/",
            "lmk import theirs/ --from pyserini -m minilm -o vectors/",
        ),
    ),
    "export": Verb(
        "Prepare",
        "Export vectors, training examples or a model to other tools.",
        (
            "lmk export vectors/ --to pyserini -o theirs/",
            "lmk export -m minilm --to sentence-transformers -o model/",
        ),
    ),
    "search": Verb(
        "Search",
        "Search for queries; fuse and rerank the results.",
        (
            'lmk search ./mydocs -q "how do I reset it?"',
            "lmk search index/ beir/scifact/test -k 100 -o run.trec",
        ),
    ),
    "serve": Verb(
        "Search",
        "Answer searches: a page, HTTP and MCP.",
        ("lmk serve vectors/ bm25/", "lmk serve index/ --mcp"),
    ),
    "eval": Verb(
        "Evaluate",
        "Evaluate runs, with significance tests.",
        (
            "lmk eval run.trec -m nDCG@10 -m R@100",
            "lmk eval bm25.trec dense.trec --baseline bm25.trec",
        ),
    ),
    "browse": Verb(
        "Evaluate",
        "Write a page to explore and compare runs.",
        (
            "lmk browse bm25.trec dense.trec -o report.html",
            "lmk browse run.trec --qrels qrels.txt --collection ./mydocs -o report.html",
        ),
    ),
    "plot": Verb(
        "Evaluate",
        "Draw curves of scores, or of a training.",
        (
            "lmk plot scores.jsonl --x gran -m nDCG@10 -o curve.svg",
            "lmk plot model/ -o training.svg",
        ),
    ),
    "grid": Verb(
        "Evaluate",
        "Run all combinations of settings; print one table.",
        (
            "lmk grid grid.toml -o results/ --dry-run",
            "lmk grid grid.toml -o results/ -j 2 -f latex",
        ),
    ),
    "analyze": Verb(
        "Evaluate",
        "Inspect models and vectors: attention, lengths, maps.",
        (
            "lmk analyze attention ./mydocs -m minilm --pool cls --pool lmk --gran 32 -o attention.svg",
            "lmk analyze map vectors/ --by chunk -o map.svg",
        ),
    ),
    "train": Verb(
        "Train",
        "Train a retrieval model on examples.",
        (
            "lmk train pairs.jsonl -m BASE --pool lmk --gran 32,64,128 -o model/",
            "lmk train beir/scifact:train -m BASE --dev beir/scifact/test -o model/",
        ),
    ),
    "pretrain": Verb(
        "Train",
        "Pre-train an encoder on texts: MLM, RetroMAE, DupMAE, TITE.",
        (
            "lmk pretrain ./mydocs -m BASE -o model/",
            "lmk pretrain ./mydocs -m BASE --objective retromae --pool lmk --gran 256 -o model/",
        ),
    ),
    "show": Verb(
        "Inspect",
        "Describe an artifact and its origin; list known names.",
        ("lmk show vectors/", "lmk show caches"),
    ),
    "verify": Verb(
        "Inspect",
        "Encode a sample again and compare it with stored vectors.",
        ("lmk verify vectors/", "lmk verify vectors/ --sample 1000 --device cpu"),
    ),
    "repro": Verb(
        "Inspect",
        "Repeat recorded steps and compare the results.",
        ("lmk repro run.trec", "lmk repro 'scores.jsonl#3' -o again/"),
    ),
    "doctor": Verb(
        "Inspect",
        "Check this machine, and print how to fix problems.",
        ("lmk doctor", "lmk doctor --thorough --json"),
    ),
    "demo": Verb(
        "Inspect",
        "Run the main steps offline; the first answer takes seconds.",
        ("lmk demo", "lmk demo /tmp/lmk-demo --full"),
    ),
}

# Words of other tools -> the command to use. Errors about unknown commands suggest it.
MEANT = {
    "ask": "lmk search FOLDER -q 'a question'",
    "query": "lmk search INDEX -q 'a question'",
    "retrieve": "lmk search",
    "server": "lmk serve",
    "api": "lmk serve",
    "web": "lmk serve",
    "mcp": "lmk serve --mcp",
    "rerank": "lmk search --rerank VECTORS or --rerank-model MODEL",
    "fuse": "lmk search INDEX --with OTHER --fuse rrf",
    "fusion": "lmk search INDEX --with OTHER --fuse rrf",
    "hybrid": "lmk search INDEX --with OTHER --fuse rrf",
    "merge": "lmk search --with OTHER --fuse rrf; shards: their own command without --shard",
    "gather": "the same command as for the shards, without --shard",
    "join": "the same command as for the shards, without --shard",
    "embed": "lmk encode",
    "vectorize": "lmk encode",
    "convert": "lmk export (to other tools) or lmk import (from them)",
    "chunk": "lmk encode --unit chunk --gran 64",
    "split": "lmk encode --unit chunk --gran 64",
    "download": "lmk fetch",
    "pull": "lmk fetch",
    "get": "lmk fetch",
    "build": "lmk index",
    "add": "lmk update",
    "evaluate": "lmk eval",
    "score": "lmk eval",
    "measure": "lmk eval",
    "compare": "lmk eval A.trec B.trec --baseline A.trec",
    "significance": "lmk eval A.trec B.trec --baseline A.trec",
    "finetune": "lmk train",
    "fine-tune": "lmk train",
    "distill": "lmk train --loss kl",
    "mine": "lmk search; lmk train reads its run as negatives",
    "sweep": "lmk grid",
    "info": "lmk show",
    "list": "lmk show sources, poolers, models, indexes, objectives or pretexts",
    "inspect": "lmk show",
    "visualize": "lmk analyze map",
    "check": "lmk verify (an artifact) or lmk doctor (this machine)",
    "reproduce": "lmk repro",
    "help": "lmk COMMAND -h",
    "version": "lmk --version",
}
