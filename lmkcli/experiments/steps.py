"""Steps: the operations that make a cell's scores, and the keys by which cells share them.

A key is a digest of what decides the result: the flags that matter, the documents, the model, and the
keys of the steps before. Cells whose commands have the same key share one step and its folder.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
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
    TEXTS,
    Value,
    is_shared,
    owner,
    settings,
)
from lmkcli.spec.operation import Operation, Option, options

# What each command makes, in its step's folder, in the order of a chain.
OUTPUTS = {
    "pretrain": "model", "train": "model", "tokenize": "tokens", "encode": "vectors",
    "index": "index", "search": "run.trec", "eval": "scores.jsonl",
}  # fmt: skip
RESULT = "result.json"  # what a command printed, once it has ended well
STEPS = "steps"  # the folder of all steps, in that of the results
_OF_MODELS = ("pretrain", "train", "encode")
_AUTO: Value = ("auto",)


@dataclass(frozen=True)
class Step:
    """One operation of a plan. `needs` are the keys of the steps whose output it reads."""

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
        """Whether an earlier step makes the model that this one reads."""
        return any(key.startswith(("train-", "pretrain-")) for key in self.needs)

    def operations(self) -> list[tuple[str, Operation[Any]]]:
        """The operation of each shard, and the name of the file that its result goes to."""
        if self.shards == 1:
            return [(RESULT, self.operation)]
        return [
            (f"shard-{number}.json", self.operation.changed_to(shard=f"{number}/{self.shards}"))
            for number in range(self.shards)
        ]


class _Model(NamedTuple):
    """A model of a cell: where it is, what stands for it in keys, and the steps that make it."""

    path: str
    material: Any
    needs: tuple[str, ...] = ()


class Chain:
    """The steps of one cell, whose outputs lie below `folder`."""

    def __init__(self, cell: Cell, folder: Path, shards: int = 1) -> None:
        self._cell, self._folder = cell, folder
        self._shards = shards  # of every encoding
        # Command -> field -> its value as text.
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
        """Set the value of an axis for its command, or for all that share it."""
        verb, option = owner(axis)
        takers = {verb: option}
        if is_shared(option):
            named = {each: settings(each).get(axis) for each in OUTPUTS}
            takers = {each: found for each, found in named.items() if found and is_shared(found)}
        for each, found in takers.items():
            self._given[each][found.name] = value

    def steps(self, tokens: Step | None = None) -> list[Step]:
        """The steps in their order, the last of which scores the cell; documents come from `tokens`.

        UsageError where settings have no effect together.
        """
        steps = [self._lexical()] if self._kind in catalog.LEXICAL else [*self._dense(tokens)]
        index = steps[-1]
        inputs = {"index": self.place(index), "queries": self._collection}
        run = self._step("search", inputs, self._texts, (index.key,))
        scored = self._step("eval", {"runs": [self.place(run)]}, "", (run.key,))
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
        return self._step("index", {"source": self._collection}, self._texts)

    def _is_of_a_model(self, axis: str) -> bool:
        """Whether an axis makes a model, or what a model makes."""
        if axis in (COLLECTION, MEASURES):
            return False
        if axis in (EXAMPLES, TEXTS):
            return True
        verb, option = owner(axis)
        return verb in _OF_MODELS and not is_shared(option)

    def _dense(self, tokens: Step | None) -> Iterator[Step]:
        yield from self._learned
        if not self._model.path:
            raise UsageError('there is no model; add model = ["…"], or kind = "bm25"')
        yield (vectors := self._encoded(tokens))
        if self._kind not in ("", "exact"):
            yield self._step("index", {"source": self.place(vectors)}, "", (vectors.key,))
        elif useless := sorted(self._own("index") - {"kind"}):
            raise UsageError(
                f"{', '.join(useless)} has no effect on exact search; add kind, or drop it"
            )

    def _own(self, verb: str) -> set[str]:
        """The fields that are set for a command alone, not for all commands."""
        given = self._given[verb]
        return {each.name for each in _options(verb) if each.name in given and not is_shared(each)}

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
            if not texts and self._own(verb):
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
        stamps = [sources.stamp(each) for each in texts]
        return self._step(verb, {"sources": texts}, [material, stamps], needs)

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
        source = {"source": self._collection}
        step = self._step("encode", source, material, self._model.needs)
        if tokens is None:
            return step
        reading = {each.name for each in _options("encode") if each.flag.role == "reading"}
        for name in reading:  # which the tokens were read with; the key is the same either way
            self._given["encode"].pop(name, None)
        needs = (tokens.key, *self._model.needs)
        return self._made("encode", {"source": self.place(tokens)}, step.key, needs)

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
        recipe = {"doc_prompt": taught.get("doc_prompt", ())} | inherited | own
        recipe["gran"] = tuple(word.partition(",")[0] for word in recipe.get("gran", ()))
        decided = {each.name for each in _options("tokenize") if not each.flag.role} | {"model"}
        self._given["tokenize"] |= {
            name: value
            for name, value in recipe.items()
            if value and name in decided - {"max_length"}
        }
        material = [self._texts, sources.tokens_material(self._given["tokenize"])]
        key = f"tokenize-{manifest.digest(material)[:10]}"
        return self._made("tokenize", {"source": self._collection}, key)

    def _step(
        self, verb: str, inputs: dict[str, Any], material: Any, needs: tuple[str, ...] = ()
    ) -> Step:
        """A step whose key follows from its settings and from `material`, which stands for its inputs."""
        idle = {each.name for each in _options(verb) if each.flag.role in ("speed", "mode")}
        deciding = {
            name.replace("_", "-"): value
            for name, value in self._given[verb].items()
            if name not in idle | {"model"}
        }
        key = f"{verb}-{manifest.digest([sorted(deciding.items()), material, needs])[:10]}"
        return self._made(verb, inputs, key, needs)

    def _made(
        self, verb: str, inputs: dict[str, Any], key: str, needs: tuple[str, ...] = ()
    ) -> Step:
        """The step of a key; UsageError if the command does not accept its settings."""
        place = Path(self._place(key, verb))
        output = {"log": place, "per_query": True} if verb == "eval" else {"output": place}
        kind = catalog.load(catalog.OPERATIONS, verb, "operation")
        try:
            operation = kind.from_texts(self._given[verb], **inputs, **output)
        except UsageError as error:
            raise UsageError(f"lmk {verb}: {error}") from error
        return Step(key, operation, needs, self._shards if verb == "encode" else 1)


@cache
def _options(verb: str) -> tuple[Option, ...]:
    return options(catalog.load(catalog.OPERATIONS, verb, "operation"))
