"""Steps: the operations that compute the scores of a cell, and the keys by which cells share them.

A key is a digest of everything that affects the result: flags, documents, the model, and the keys of the
previous steps. Commands of several cells with the same key are one step with one folder. Local folders are
represented by digests of their contents, so a model that is trained again gives other steps. Models of the
hub and collections of ir_datasets are represented by their names, downloaded or not.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli import catalog
from lmkcli.artifact import manifest
from lmkcli.data.collection import divided
from lmkcli.errors import UnknownName, UsageError
from lmkcli.models.lookup import is_local, read_model
from lmkcli.models.model_folder import ModelFolder
from lmkcli.plugins.grid.gridfile import (
    COLLECTION,
    EXAMPLES,
    MEASURES,
    SECOND_STAGES,
    TEXTS,
    GridCell,
    Value,
    is_shared,
    owner,
    settings,
)
from lmkcli.spec.operation import Operation
from lmkcli.spec.option import Option, options
from lmkcli.spec.values import SPLITTERS, Shard


@cache
def local_model(name: str, revision: str) -> ModelFolder | None:
    """Return the model, if it is on this machine; UsageError for a path without a model."""
    if not os.path.isdir(os.path.expanduser(name)):
        if name.endswith("/"):
            raise UsageError(f"there is no model folder {name}")
        if not is_local(name, revision or None):
            return None
    return read_model(name, revision or None, offline=True)


def model_key_data(name: str, revision: str) -> Any:
    """Return the part of a key for a model: digests of a local folder, or name and revision on the hub."""
    model = local_model(name, revision) if name else None
    if model is None or model.revision:
        return [name, revision]
    # Settings in the folder that affect vectors too
    prompts = (model.query_prompt, model.doc_prompt)
    lengths = (model.max_length, model.query_length)
    declared = [
        model.pool,
        model.gran,
        *lengths,
        *prompts,
        model.similarity,
        model.normalize,
        model.dim,
    ]
    sides = filter(None, (model, model.queries))
    return [digest for side in sides for digest in (side.weights_digest, side.tokenizer_digest)] + [
        declared
    ]


def tokens_key_data(flags: Mapping[str, tuple[str, ...]]) -> Any:
    """Return the part of a key for tokens of `lmk tokenize` with these flags: tokenizer, prompt, splitter.

    The tokenizer of a model that is not on this machine is unknown, so its tokens are not shared with
    other models.
    """
    name, revision, gran, pool = (
        " ".join(flags.get(flag, ())) for flag in ("model", "revision", "gran", "pool")
    )
    model = local_model(name, revision)
    declared = model.gran if model and pool in ("", "auto") else ""
    splitter = gran or declared or ("" if model or pool not in ("", "auto") else "auto")
    prompt = flags.get("doc_prompt") or ((model.doc_prompt,) if model else ("auto",))
    tokenizer = model.tokenizer_digest if model else [name, revision]
    others = {
        flag: flags.get(flag) for flag in ("store_text", "trust_remote_code", "fields", "map_ids")
    }
    return [tokenizer, prompt, splitter if splitter in (*SPLITTERS, "auto") else "", others]


@cache
def file_stats(spelling: str) -> Any:
    """Names, sizes and times of the files at a path; None if the spelling is not a path."""
    path = Path(os.path.expanduser(divided(spelling)[0]))
    path = path if path.exists() else Path(str(path).rpartition(":")[0])
    if not path.name or not path.exists():
        return None
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    stats = [(str(each.relative_to(path)), each.stat()) for each in files]
    return [[name, facts.st_size, facts.st_mtime_ns] for name, facts in stats]


# The output of each command in the folder of its step, in the order of a chain.
OUTPUTS = {
    "pretrain": "model", "train": "model", "tokenize": "tokens", "encode": "vectors",
    "index": "index", "search": "run.trec", "eval": "scores.jsonl",
}  # fmt: skip
RESULT = "result.json"  # the output of a command, after it has succeeded
STEPS = "steps"  # the folder of all steps in the folder of results
_OF_MODELS = ("pretrain", "train", "encode")  # commands that a lexical index does not use
_AUTO: Value = ("auto",)


@dataclass(frozen=True)
class GridStep:
    """One operation of a plan. `needs` has the keys of the steps that must run before it."""

    key: str
    operation: Operation[Any]
    needs: tuple[str, ...] = ()
    shards: int = 1

    @property
    def verb(self) -> str:
        """The command of the operation."""
        return self.operation.verb

    @property
    def trained(self) -> bool:
        """Whether an earlier step trains the model of this step."""
        return any(key.startswith(("train-", "pretrain-")) for key in self.needs)

    def result_names(self) -> Iterator[str]:
        """Return the name of the result file of each shard."""
        several = (f"shard-{number}.json" for number in range(self.shards))
        return iter([RESULT]) if self.shards == 1 else several

    def operations(self) -> Iterator[tuple[str, Operation[Any]]]:
        """Yield the name of the result file and the operation of each shard."""
        for number, name in enumerate(self.result_names()):
            shard = Shard(number, self.shards)
            one = self.shards == 1
            yield name, self.operation if one else self.operation.changed_to(shard=shard)


class _Model(NamedTuple):
    """A model of a cell: its path, its part of a key, and the keys of the steps that train it."""

    path: str
    key_data: Any
    needs: tuple[str, ...] = ()


class CellSteps:
    """Builds the steps of one cell, with outputs below `folder`."""

    def __init__(
        self,
        cell: GridCell,
        folder: Path,
        shards: int = 1,
        made_before: dict[Any, GridStep] | None = None,
    ) -> None:
        """`shards` are those of every encoding; `made_before` are the steps of other cells of the plan."""
        self._cell, self._folder = cell, str(folder / STEPS)
        self._shards = shards
        self._made_before = {} if made_before is None else made_before
        # Command -> field -> value as text
        self._given: dict[str, dict[str, Value]] = {verb: {} for verb in OUTPUTS}
        for axis, value in cell.values.items():
            if value and axis not in (COLLECTION, MEASURES, EXAMPLES, TEXTS):
                self._set(axis, value)
        self._encode_settings = dict(self._given["encode"])  # with the model of the grid file
        self._given["eval"]["measure"] = cell.values[MEASURES]
        self._collection = " ".join(cell.values[COLLECTION])
        self._texts = [self._collection, file_stats(self._collection)]
        self._kind = " ".join(self._given["index"].get("kind", ()))
        # The stages of the search that also read the vectors of the cell
        search = self._given["search"]
        self._second = [name for name in SECOND_STAGES if search.pop(name, ())]

    def _set(self, axis: str, value: Value) -> None:
        """Set the value of an axis for its command, or for all commands that share it."""
        verb, option = owner(axis)
        takers = {verb: option}
        if is_shared(option):
            named = {each: settings(each).get(axis) for each in OUTPUTS}
            takers = {each: found for each, found in named.items() if found and is_shared(found)}
        for each, found in takers.items():
            self._given[each][found.name] = value

    @cached_property
    def steps(self) -> list[GridStep]:
        """The steps in order; the last one scores the cell. Raises UsageError for useless settings."""
        steps = [*(self._lexical() if catalog.is_lexical(self._kind) else self._dense())]
        index, key_data = steps[-1], self._texts
        needs: tuple[str, ...] = (index.key,)
        inputs: dict[str, Any] = {"index": self.place(index), "queries": self._collection}
        if self._second:
            vectors = steps[-2]
            places = {"rerank": self.place(vectors), "others": [self.place(vectors)]}
            inputs |= {name: places[name] for name in self._second}
            key_data, needs = [*key_data, self._second], (*needs, vectors.key)
        run = self._step("search", inputs, key_data, needs)
        scored = self._step("eval", {"runs": [self.place(run)]}, "", (run.key,))
        return [*steps, run, scored]

    def reading(self, tokens: GridStep) -> list[GridStep]:
        """Return the same steps, with an encoding that reads tokens."""
        return [
            self._of_tokens(each, tokens) if each.verb == "encode" else each for each in self.steps
        ]

    def place(self, step: GridStep) -> str:
        """Return the path of the output of a step."""
        return self._place(step.key, step.verb)

    def _place(self, key: str, verb: str) -> str:
        return f"{self._folder}/{key}/{OUTPUTS[verb]}"

    def _lexical(self) -> Iterator[GridStep]:
        """Yield an index of words, after the vectors that rerank it or that are fused with it, if any."""
        if self._second:
            yield from self._vectors()
        elif useless := [
            axis for axis, value in self._cell.values.items() if value and self._needs_model(axis)
        ]:
            raise UsageError(
                f"{', '.join(useless)} has no effect with --kind {self._kind}, which indexes words. To leave "
                f'it out, write a [[grid.where]] with kind = "{self._kind}" and {useless[0]} = [""]; to use '
                'the vectors of the model as well, write search.rerank = "vectors"'
            )
        yield self._step("index", {"source": self._collection}, self._texts)

    def _needs_model(self, axis: str) -> bool:
        """Return whether an axis is a setting of pre-training, training or encoding."""
        if axis in (COLLECTION, MEASURES):
            return False
        if axis in (EXAMPLES, TEXTS):
            return True
        verb, option = owner(axis)
        return verb in _OF_MODELS and not is_shared(option)

    def _vectors(self) -> Iterator[GridStep]:
        yield from self._trainings
        if not self._model.path:
            raise UsageError('the grid has no model; add model = ["…"], or kind = "bm25"')
        yield self._encoded()

    def _dense(self) -> Iterator[GridStep]:
        if self._second:
            raise UsageError(
                'search.rerank and search.with need kind = "bm25": they combine the ranking of words with '
                "the vectors of the cell"
            )
        steps = [*self._vectors()]
        vectors = steps[-1]
        yield from steps
        if self._kind not in ("", "exact"):
            yield self._step("index", {"source": self.place(vectors)}, "", (vectors.key,))
        elif useless := sorted(self._own("index") - {"kind"}):
            raise UsageError(
                f"{', '.join(useless)} has no effect on exact search; add kind, or drop it"
            )

    def _own(self, verb: str) -> set[str]:
        """Return the fields that are set for this command only."""
        given = self._given[verb]
        return {each.name for each in _options(verb) if each.name in given and not is_shared(each)}

    @cached_property
    def _base(self) -> _Model:
        """The model of the grid file."""
        given = self._encode_settings
        name, revision = (" ".join(given.get(flag, ())) for flag in ("model", "revision"))
        return _Model(name, model_key_data(name, revision))

    @cached_property
    def _trainings(self) -> list[GridStep]:
        """The pre-training and the training of the cell, if any."""
        steps: list[GridStep] = []
        for verb, axis in (("pretrain", TEXTS), ("train", EXAMPLES)):
            texts = self._cell.values.get(axis, ())
            if not texts and self._own(verb):
                raise UsageError(f"{verb} needs texts; add {axis}")
            if texts:
                steps.append(self._training(verb, list(texts), steps[-1:]))
        return steps

    def _training(self, verb: str, texts: list[str], before: list[GridStep]) -> GridStep:
        """Return a training. It starts with the model of the previous step, its own model, or the cell's
        model.
        """
        given = self._given[verb]
        needs = tuple(step.key for step in before)
        if before:
            given["model"] = (self.place(before[0]),)
            key_data = before[0].key
        elif "model" in given or "architecture" in given:
            key_data = model_key_data(" ".join(given.get("model", ())), "")
        else:
            key_data = self._base.key_data
            shared = self._encode_settings
            given |= {name: shared[name] for name in ("model", "revision") if name in shared}
        stats = [[each, file_stats(each)] for each in texts]
        return self._step(verb, {"sources": texts}, [key_data, stats], needs)

    @cached_property
    def _model(self) -> _Model:
        """The model for encoding: the last trained one, or the model of the grid file."""
        if not self._trainings:
            return self._base
        training = self._trainings[-1]
        return _Model(self.place(training), training.key, (training.key,))

    def _encoded(self) -> GridStep:
        given = dict(self._encode_settings)
        if self._trainings:
            given.pop("revision", None)
        self._given["encode"] = given | {"model": (self._model.path,)}
        key_data = [self._model.key_data, self._texts, *[self._shards] * (self._shards > 1)]
        return self._step("encode", {"source": self._collection}, key_data, self._model.needs)

    def _of_tokens(self, encoding: GridStep, tokens: GridStep) -> GridStep:
        """Return the step of an encoding, with tokens as its source. The key stays the same."""
        reading = {each.name for each in _options("encode") if each.flag.role == "reading"}
        for name in reading:  # these are settings of the tokens then
            self._given["encode"].pop(name, None)
        needs = (tokens.key, *self._model.needs)
        return self._made("encode", {"source": self.place(tokens)}, encoding.key, needs)

    @cached_property
    def tokens(self) -> GridStep | None:
        """The tokens of the documents, one step for all cells with the same tokenizer.

        None if the grid file names no model for encoding. Also None for chunks with contexts, because the
        contexts need additional tokens.
        """
        own, trained = self._encode_settings, self._given["train"]
        lexical = catalog.is_lexical(self._kind) and not self._second
        if lexical or not self._base.path or "context" in own:
            return None
        # A trained model keeps the settings of its training, unless the grid sets a pooler
        inherited = trained if self._trainings and own.get("pool", _AUTO) == _AUTO else {}
        recipe = {"doc_prompt": trained.get("doc_prompt", ())} | inherited | own
        recipe["gran"] = tuple(word.partition(",")[0] for word in recipe.get("gran", ()))
        fields = {each.name for each in _options("tokenize") if not each.flag.role} | {"model"}
        self._given["tokenize"] |= {
            name: value
            for name, value in recipe.items()
            if value and name in fields - {"max_length"}
        }
        key_data = [self._texts, tokens_key_data(self._given["tokenize"])]
        key = f"tokenize-{manifest.digest(key_data)[:10]}"
        return self._made("tokenize", {"source": self._collection}, key)

    def _step(
        self, verb: str, inputs: dict[str, Any], key_data: Any, needs: tuple[str, ...] = ()
    ) -> GridStep:
        """Return a step with a key from its settings and from `key_data`, the part of the
        key for its inputs.
        """
        ignored, files = _ignored(verb), _files(verb)
        effective: dict[str, Any] = {
            name.replace("_", "-"): value
            for name, value in self._given[verb].items()
            if name not in ignored
        }
        for name, value in self._given[verb].items():
            if name in files and (stats := [file_stats(each) for each in value]) != [None]:
                effective[f"{name} (files)"] = stats
        key = f"{verb}-{manifest.digest([sorted(effective.items()), key_data, needs])[:10]}"
        return self._made(verb, inputs, key, needs)

    def _made(
        self, verb: str, inputs: dict[str, Any], key: str, needs: tuple[str, ...] = ()
    ) -> GridStep:
        """Return the step with a key; UsageError if the command does not accept its settings."""
        # Cells often share a step. Creating its operation once makes a plan of many cells fast.
        exact = (verb, key, str(inputs), str(self._given[verb]))
        if exact not in self._made_before:
            place = Path(self._place(key, verb))
            output = {"log": place, "per_query": True} if verb == "eval" else {"output": place}
            try:
                operation = _kind(verb).from_texts(self._given[verb], **inputs, **output)
            except UnknownName:
                raise  # a name that no cell can have
            except UsageError as error:
                raise UsageError(f"lmk {verb}: {error}") from error
            shards = self._shards if verb == "encode" else 1
            self._made_before[exact] = GridStep(key, operation, needs, shards)
        return self._made_before[exact]


@cache
def _kind(verb: str) -> Any:
    return catalog.VERBS.load(verb)


@cache
def _ignored(verb: str) -> frozenset[str]:
    """Return the fields that are no part of a key; the key contains the model by its contents."""
    ignored = {each.name for each in _options(verb) if each.flag.role in ("speed", "mode")}
    return frozenset(ignored | {"model"})


@cache
def _files(verb: str) -> frozenset[str]:
    """Return the fields that name files or other models, such as an architecture or a teacher."""
    named = {each.name for each in _options(verb) if each.flag.role in ("file", "model")}
    return frozenset(named - _ignored(verb))


@cache
def _options(verb: str) -> tuple[Option, ...]:
    return options(_kind(verb))
