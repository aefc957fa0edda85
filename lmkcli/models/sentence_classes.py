"""Classes of models of sentence-transformers that pool in other ways than SentenceTransformer.

A plug-in provides such a class with a row of the catalog (`SentenceClassRow`). The folders of its models have
a module of the class where others have `Pooling`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lmkcli import catalog
from lmkcli.errors import DataError
from lmkcli.models.model_files import read_json


@dataclass(frozen=True)
class SentenceClass:
    """A class of models.

    name: the class that opens the folders. package: of the types of its modules. transformer, pooling: its
    modules. poolers: the configuration of `pooling` for each pooler; the first one has the defaults. task,
    settings: what the configuration of `transformer` may contain. similarity: of a folder that declares none.
    table: the module that encodes queries without the model. tags: of its model cards.
    """

    name: str
    package: str
    transformer: str
    pooling: str
    poolers: Mapping[str, Mapping[str, str]]
    task: str
    similarity: str
    table: str
    tags: str

    @property
    def usual(self) -> str:
        """The pooler of a folder without a configuration."""
        return next(iter(self.poolers))

    def pooler(self, folder: Path) -> str:
        """Return the pooler that the folder of `pooling` declares. Raises DataError for another pooling."""
        config = read_json(folder / "config.json")
        defaults = self.poolers[self.usual]
        declared = {key: config.get(key, usual) for key, usual in defaults.items()}
        for name, wanted in self.poolers.items():
            if declared == wanted:
                return name
        raise DataError(
            f"{folder.parent} pools by {' of '.join(map(str, declared.values()))} ({self.pooling}), which "
            "lmk does not support; choose another model"
        )


def sentence_classes() -> list[SentenceClass]:
    """Return the classes of all installed packages."""
    return [catalog.SENTENCE_CLASSES.load(name) for name in catalog.SENTENCE_CLASSES]


def class_of(modules: Iterable[str]) -> SentenceClass | None:
    """Return the class of a folder with these modules; None for a SentenceTransformer."""
    names = set(modules)
    return next((each for each in sentence_classes() if each.pooling in names), None)
