"""lmk analyze: attention, landmarks, lengths, maps and similarity, each a table and a figure."""

from typing import Annotated

import typer

from lmkcli.cli import completion
from lmkcli.cli.analyzeoptions import ShownOptions, SubjectOptions
from lmkcli.cli.flags import Given, Subset, with_flags
from lmkcli.cli.options import no_effect
from lmkcli.errors import UsageError

_RUN = {"dtype", "device", "trust_remote_code", "offline"}
_PLACED = {"models", "pools", "gran", "max_length", "docs", "min_tokens"} | _RUN
# The flags that mean something to each analysis, beside --output and --json.
FLAGS: dict[str, set[str]] = {
    "attention": _PLACED | {"layers", "bins"},
    "landmarks": _PLACED,
    "lengths": {"models", "trust_remote_code", "offline"},
    "map": {"docs", "by", "method"},
    "similarity": {"doc"},
}


@with_flags
def analyze(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="attention, landmarks, lengths, map or similarity.",
            autocompletion=completion.among(FLAGS),
        ),
    ],
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A collection; map, similarity: a vectors folder.",
            autocompletion=completion.collections,
        ),
    ],
    subject: Annotated[SubjectOptions, Subset(conditional=True)],
    shown: Annotated[ShownOptions, Subset(conditional=True)],
    given: Given,
) -> None:
    """Look into models, vectors and collections: a small table, and with -o a figure (extra plot).

    attention: where in a text its pooling tokens look. landmarks: how often a landmark's nearest chunks
    are those beside it. lengths: how long documents are. map: vectors in two dimensions. similarity:
    the chunks of one document against each other. Beside a figure, FIGURE.json has its numbers and
    what it was made from.
    """
    if what not in FLAGS:
        raise UsageError(f"lmk analyze {what}: write one of {', '.join(FLAGS)}")
    others = set().union(*FLAGS.values()) - FLAGS[what]
    flags = Given(
        name.removesuffix("s") if name in ("models", "pools") else name for name in given & others
    )
    no_effect(flags, sorted(flags), f"lmk analyze {what}")
    from lmkcli.cli import analyses

    ask = analyses.Ask(source, subject, shown)
    ask.check_output()
    analyses.ANALYSES[what](ask)
