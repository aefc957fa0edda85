"""The record of a finished training: training.json, the last file that a training writes.

The model card, `lmk show`, the result of `lmk train` and the card for the hub read it.
"""

from pathlib import Path
from typing import NotRequired, TypedDict

from lmkcli.artifact.kinds import OpenMapping
from lmkcli.models.model_folder import TRAINED
from lmkcli.system.input_files import read_json


class SourceRecord(TypedDict):
    """A source of examples: its name, the number of examples that were read, and its weight."""

    name: str
    examples: int
    weight: float


class Evaluation(TypedDict):
    """The scores of the weights after a step: their mean, and the score on each development set.

    doc_terms, query_terms: the mean numbers of terms of documents and queries, for vectors of terms.
    """

    step: int
    score: float
    dev: dict[str, float]
    seconds: NotRequired[float]
    doc_terms: NotRequired[float]
    query_terms: NotRequired[float]


class DevRecord(TypedDict):
    """The evaluations of a training, and the evaluation of the published weights.

    The file also contains the inputs of the scores, whose names the scorer chooses (`Dev.identity`).
    """

    measure: str
    curve: list[Evaluation]
    published: Evaluation | None


class JobRecord(TypedDict):
    """The entries that each kind of job writes in its own way.

    base: the model at the start. objective: the loss. loaded_by: the line of Python that opens the model.
    """

    base: str
    objective: str
    sources: list[SourceRecord]
    loaded_by: str
    dev: NotRequired[DevRecord]


class TrainingRecord(JobRecord):
    """The contents of training.json.

    data: the digest of the examples. curve: the lines of the log that have a loss. cut_queries,
    cut_documents: how many texts lost tokens; a pre-training does not count them.
    """

    version: str
    steps: int
    data: str
    granularities: list[str]
    recipe: OpenMapping
    settings: OpenMapping
    curve: list[OpenMapping]
    cut_queries: NotRequired[int]
    cut_documents: NotRequired[int]


def read_training_record(folder: Path) -> TrainingRecord | None:
    """Return the record of the training of a model folder; None if the folder has none.

    Raises DataError if it cannot be read.
    """
    path = folder / TRAINED
    return read_json(path, TrainingRecord, "train again") if path.is_file() else None
