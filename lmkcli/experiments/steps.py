"""Steps: the lmk command lines that make a cell's scores, and the keys by which cells share them.

A key is a digest of what decides the result: the flags that matter, the documents, the model, and the
keys of the steps before. Cells whose commands have the same key share one step and its folder.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lmkcli import catalog, manifest
from lmkcli.errors import UsageError
from lmkcli.experiments import sources
from lmkcli.experiments.cells import Cell
from lmkcli.experiments.gridfile import (
    COLLECTION,
    EXAMPLES,
    MEASURES,
    SHARED,
    TEXTS,
    Flags,
    Value,
    owner,
)

# What each command makes, in its step's folder, in the order of a chain.
OUTPUTS = {
    "pretrain": "model", "train": "model", "tokenize": "tokens", "encode": "vectors",
    "index": "index", "search": "run.trec", "eval": "scores.jsonl",
}  # fmt: skip
RESULT = "result.json"  # what a command printed, once it has ended well
STEPS = "steps"  # the folder of all steps, in that of the results
# Flags that change nothing but how fast a result is there, or where it may come from.
_IDLE = {"device", "offline"}
_IDLE_OF = {"encode": {"batch-tokens", "batch-size"}, "index": {"max-memory"}}
_READING = ("fields", "map-ids")  # of a collection
# What decides token ids, or must be said for what decides them to be understood.
_RECIPE = (
    "model",
    "revision",
    "pool",
    "gran",
    "unit",
    "window",
    "overlap",
    "doc-prompt",
    "store-text",
)
_OF_MODELS = ("pretrain", "train", "encode")
_AUTO: Value = ("auto",)


@dataclass(frozen=True)
class Step:
    """One command line. `words` follow 'lmk'; `needs` are the keys of the steps whose output it reads."""

    key: str
    verb: str
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    shards: int = 1

    @property
    def trained(self) -> bool:
        """Whether a step before makes the model that this one reads."""
        return any(key.startswith(("train-", "pretrain-")) for key in self.needs)

    def commands(self) -> list[tuple[str, tuple[str, ...]]]:
        """The command line of each shard, and the name of the file that its result goes to."""
        if self.shards == 1:
            return [(RESULT, self.words)]
        numbered = [(number, f"{number}/{self.shards}") for number in range(self.shards)]
        return [(f"shard-{n}.json", (*self.words, "--shard", share)) for n, share in numbered]


class _Model(NamedTuple):
    """A model of a cell: where it is, what stands for it in keys, and the steps that make it."""

    path: str
    material: Any
    needs: tuple[str, ...] = ()


class Chain:
    """The steps of one cell, whose outputs lie below `folder`."""

    def __init__(self, cell: Cell, flags: Flags, folder: Path, shards: int = 1) -> None:
        self._cell, self._flags, self._folder = cell, flags, folder
        self._shards = shards  # of every encoding
        self._given: dict[str, dict[str, Value]] = {verb: {} for verb in OUTPUTS}
        for axis, value in cell.values.items():
            if value and axis not in (COLLECTION, MEASURES, EXAMPLES, TEXTS):
                self._give(axis, value)
        self._asked = dict(self._given["encode"])  # with the model as the grid names it
        self._given["eval"]["measure"] = cell.values[MEASURES]
        self._collection = " ".join(cell.values[COLLECTION])
        self._texts = [self._collection, sources.stamp(self._collection)]
        self._kind = " ".join(self._given["index"].get("kind", ()))

    def _give(self, axis: str, value: Value) -> None:
        verb, flag = owner(axis, self._flags)
        takers = (
            [each for each in OUTPUTS if flag in self._flags[each]] if axis in SHARED else [verb]
        )
        for each in takers:
            self._given[each][flag] = value

    def steps(self, tokens: Step | None = None) -> list[Step]:
        """The steps in their order, the last of which scores the cell; documents come from `tokens`.

        UsageError where settings have no effect together.
        """
        steps = [self._lexical()] if self._kind in catalog.LEXICAL else [*self._dense(tokens)]
        index = steps[-1]
        place = [self.place(index), self._collection]
        run = self._step("search", place, self._texts, (index.key,))
        scored = self._step("eval", [self.place(run)], "", (run.key,))
        return [*steps, run, scored]

    def place(self, step: Step) -> str:
        """Where a step puts what it makes."""
        return self._place(step.key, step.verb)

    def _place(self, key: str, verb: str) -> str:
        return str(self._folder / STEPS / key / OUTPUTS[verb])

    def _lexical(self) -> Step:
        if useless := [
            axis for axis, value in self._cell.values.items() if value and self._is_of_a_model(axis)
        ]:
            raise UsageError(
                f"{', '.join(useless)} has no effect with --kind {self._kind}, which reads words; a "
                f'[[grid.where]] with kind = "{self._kind}" leaves it out by {useless[0]} = [""]'
            )
        return self._step("index", [self._collection], self._texts)

    def _is_of_a_model(self, axis: str) -> bool:
        """Whether an axis makes a model, or what a model makes."""
        if axis in (COLLECTION, MEASURES):
            return False
        verb, flag = owner(axis, self._flags)
        return verb in _OF_MODELS and flag not in SHARED

    def _dense(self, tokens: Step | None) -> Iterator[Step]:
        yield from self._learned
        if not self._model.path:
            raise UsageError('there is no model; add model = ["…"], or kind = "bm25"')
        yield (vectors := self._encoded(tokens))
        if self._kind not in ("", "exact"):
            yield self._step("index", [self.place(vectors)], "", (vectors.key,))
        elif useless := sorted(self._given["index"].keys() - {"kind", *SHARED}):
            raise UsageError(
                f"{', '.join(useless)} has no effect on exact search; add kind, or drop it"
            )

    @cached_property
    def _base(self) -> _Model:
        """The model as the grid names it."""
        name, revision = (" ".join(self._asked.get(flag, ())) for flag in ("model", "revision"))
        return _Model(name, sources.model_material(name, revision))

    @cached_property
    def _learned(self) -> list[Step]:
        """Pre-training and training, where the cell asks for them."""
        steps: list[Step] = []
        for verb, axis in (("pretrain", TEXTS), ("train", EXAMPLES)):
            texts = self._cell.values.get(axis, ())
            if not texts and self._given[verb].keys() - {*SHARED}:
                raise UsageError(f"{verb} needs its texts; add {axis}")
            if texts:
                steps.append(self._learning(verb, list(texts), steps[-1:]))
        return steps

    def _learning(self, verb: str, texts: list[str], before: list[Step]) -> Step:
        """A training that begins with what was made before, else with its own base or the cell's."""
        given = self._given[verb]
        needs = tuple(step.key for step in before)
        if before:
            given["model"] = (self.place(before[0]),)
            material = before[0].key
        elif "model" in given or "architecture" in given:
            material = sources.model_material(" ".join(given.get("model", ())), "")
        else:
            material = self._base.material
            given |= {
                name: self._asked[name] for name in ("model", "revision") if name in self._asked
            }
        return self._step(verb, texts, [material, [sources.stamp(each) for each in texts]], needs)

    @cached_property
    def _model(self) -> _Model:
        """The model that encodes."""
        if not self._learned:
            return self._base
        training = self._learned[-1]
        return _Model(self.place(training), training.key, (training.key,))

    def _encoded(self, tokens: Step | None) -> Step:
        dropped = ["revision"] if self._learned else []
        given = {name: value for name, value in self._asked.items() if name not in dropped}
        self._given["encode"] = given | {"model": (self._model.path,)}
        material = [self._model.material, self._texts, *[self._shards] * (self._shards > 1)]
        step = self._step("encode", [self._collection], material, self._model.needs)
        if tokens is None:
            return step
        for name in _READING:  # which the tokens have behind them; the key is the same either way
            self._given["encode"].pop(name, None)
        needs = (tokens.key, *self._model.needs)
        return self._spelled("encode", [self.place(tokens)], step.key, needs)

    @cached_property
    def tokens(self) -> Step | None:
        """The tokens that the cell's documents can be read from: one step for all with one tokenizer.

        None where no model is there before the grid runs, and for chunks with contexts, which are not
        tokens of the documents alone.
        """
        if self._kind in catalog.LEXICAL or not self._base.path or "context" in self._asked:
            return None
        own, taught = self._asked, self._given["train"]
        inherited = taught if self._learned and own.get("pool", _AUTO) == _AUTO else {}
        recipe = {"doc-prompt": taught.get("doc-prompt", ())} | inherited | own
        recipe["gran"] = tuple(word.partition(",")[0] for word in recipe.get("gran", ()))
        self._given["tokenize"] |= {name: recipe[name] for name in _RECIPE if recipe.get(name)}
        material = [self._texts, sources.tokens_material(self._given["tokenize"])]
        key = f"tokenize-{manifest.digest(material)[:10]}"
        return self._spelled("tokenize", [self._collection], key)

    def _step(
        self, verb: str, arguments: list[str], material: Any, needs: tuple[str, ...] = ()
    ) -> Step:
        """A step whose key follows from its flags and from `material`, which stands for its arguments."""
        idle = {*_IDLE, *_IDLE_OF.get(verb, ()), "model"}
        deciding = {name: value for name, value in self._given[verb].items() if name not in idle}
        key = f"{verb}-{manifest.digest([sorted(deciding.items()), material, needs])[:10]}"
        return self._spelled(verb, arguments, key, needs)

    def _spelled(
        self, verb: str, arguments: list[str], key: str, needs: tuple[str, ...] = ()
    ) -> Step:
        spelled, given = self._flags[verb], self._given[verb]
        flags = [word for name, value in given.items() for word in spelled[name].words(value)]
        place = self._place(key, verb)
        output = ["--log", place, "--per-query"] if verb == "eval" else ["--output", place]
        shards = self._shards if verb == "encode" else 1
        return Step(key, verb, (verb, *arguments, *flags, *output, "--json"), needs, shards)
