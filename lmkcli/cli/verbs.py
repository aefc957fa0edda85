"""The commands on help pages: their order, and words of other tools that mean one of them."""

import re

from lmkcli.catalog import VERBS, VerbRow

_START = """\
lmk: dense retrieval over documents of any length. Six commands to start with:

  lmk search ./mydocs -q "how do I reset it?"          # ask a folder of your documents
  lmk demo                                             # the main steps, in a minute
  lmk encode beir/scifact/test -m minilm -o vectors/   # documents to vectors
  lmk search vectors/ -q "does vitamin D help?"        # search for one question
  lmk search vectors/ beir/scifact/test -o run.trec    # search for all queries
  lmk eval run.trec                                    # measure the quality

Use your own folder instead of beir/scifact/test, such as ./mydocs.
'lmk --help' lists all commands, and 'lmk COMMAND -h' explains one."""


# The headings of the help page, in order; those of other packages come last.
_GROUPS = ("Prepare", "Search", "Evaluate", "Train", "Inspect")


def verbs() -> dict[str, VerbRow]:
    """Return all commands by name, in the order of the help page."""
    rows = VERBS.values()
    order = [*_GROUPS, *(row.group for row in rows)]
    return {row.name: row for row in sorted(rows, key=lambda row: order.index(row.group))}


def start() -> str:
    """Return the first commands to try: what `lmk` prints without arguments."""
    commands = ((re.match(r"  lmk (\w+)", line), line) for line in _START.split("\n"))
    return "\n".join(line for found, line in commands if not found or found[1] in VERBS)


def meant() -> dict[str, str]:
    """Words of other tools -> the command to use. Errors about unknown commands suggest it."""
    return _MEANT | {word: line for row in VERBS.values() for word, line in row.meant}


# Words of other tools -> the command to use. Errors about unknown commands suggest it.
_MEANT = {
    "ask": "lmk search FOLDER -q 'a question'",
    "query": "lmk search INDEX -q 'a question'",
    "retrieve": "lmk search",
    "rerank": "lmk search --rerank VECTORS or --rerank-model MODEL",
    "fuse": "lmk search INDEX --with OTHER --fuse rrf",
    "fusion": "lmk search INDEX --with OTHER --fuse rrf",
    "hybrid": "lmk search INDEX --with OTHER --fuse rrf",
    "merge": "lmk search --with OTHER --fuse rrf; shards: their own command without --shard",
    "gather": "the same command as for the shards, without --shard",
    "join": "the same command as for the shards, without --shard",
    "embed": "lmk encode",
    "vectorize": "lmk encode",
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
    "info": "lmk show",
    "list": "lmk show sources, readers, poolers, models, engines, losses or pretexts",
    "inspect": "lmk show",
    "check": "lmk verify (an artifact) or lmk doctor (this machine)",
    "reproduce": "lmk repro",
    "help": "lmk COMMAND -h",
    "version": "lmk --version",
}
