"""--dry-run of a training: what it would see and take; nothing is written."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from lmkcli.cli import console, recording, tables
from lmkcli.cli.options import NewOutput
from lmkcli.settings import Flag, Offline

if TYPE_CHECKING:
    from lmkcli.training.development import Dev
    from lmkcli.training.rehearsal import Rehearsed


@dataclass(frozen=True)
class ModelOutput(NewOutput):
    """Where the model goes, unless nothing is written, and where things may come from."""

    dry_run: Annotated[
        bool, Flag("Count, show placed examples, time five steps, print the plan; write nothing.")
    ] = False
    offline: Offline = False


def dry_run(job: "Rehearsed", dev: "Dev | None", json: bool) -> None:
    """Print what a training would see and take."""
    from lmkcli.training.rehearsal import rehearse

    with console.reporting("dry run", recording.call()) as report:
        rehearsal = rehearse(job, dev, report)
    if json:
        shown = [[text._asdict() for text in example] for example in rehearsal.shown]
        return console.plain_json({**rehearsal._asdict(), "shown": shown})
    for number, example in enumerate(rehearsal.shown, 1):
        for text in example:
            gran = f"gran {text.gran}, " if text.gran else ""
            gap = f" up to {text.reach:,}" if text.reach > text.positions else ""
            placed = f"{gran}{text.positions} positions{gap}"
            console.say(f"{number} {text.side} ({placed}): {text.words}")
    rows: list[list[object]] = [
        ["examples", rehearsal.examples],
        ["steps", rehearsal.steps],
        ["tokens", f"about {console.number(rehearsal.tokens)}, from {rehearsal.counted} batches"],
        ["longest input", f"{console.number(rehearsal.longest)} positions in these"],
        [
            "pace",
            f"{console.number(round(rehearsal.tokens_per_second))} tokens/s in {rehearsal.timed} steps",
        ],
        ["memory", f"{console.size(rehearsal.memory)} at the peak of these"],
        ["time", f"about {console.duration(rehearsal.seconds)} on this machine"],
    ]
    if dev:
        rows.append(["of it scoring", f"about {console.duration(rehearsal.scoring)}"])
    tables.table(["dry run", ""], rows, tables.Format.table)
