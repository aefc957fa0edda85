"""lmk analyze: attention, landmarks, lengths, maps and similarity, each a table and a figure."""

from typing import Annotated

import typer

from lmkcli.cli import completion
from lmkcli.cli.analyses import ANALYSES, Ask
from lmkcli.cli.analyzeoptions import ShownOptions, SubjectOptions
from lmkcli.cli.flags import Given, Subset, with_flags
from lmkcli.cli.options import no_effect
from lmkcli.errors import UsageError


@with_flags
def analyze(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="attention, landmarks, lengths, map or similarity.",
            autocompletion=completion.among(ANALYSES),
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
    if what not in ANALYSES:
        raise UsageError(f"lmk analyze {what}: write one of {', '.join(ANALYSES)}")
    flags = {name: analysis.flags for name, analysis in ANALYSES.items()}
    others = set().union(*flags.values()) - flags[what]
    useless = Given(
        name.removesuffix("s") if name in ("models", "pools") else name for name in given & others
    )
    no_effect(useless, sorted(useless), f"lmk analyze {what}")
    ask = Ask(source, subject, shown)
    ask.check_output()
    ANALYSES[what].answer(ask)
