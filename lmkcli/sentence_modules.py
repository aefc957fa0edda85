"""Modules of sentence-transformers with the poolers of lmk: place tokens, mark positions, average states.

The folders of `lmk export --to sentence-transformers` name these classes:
`SentenceTransformer(folder, trust_remote_code=True)` then computes the vectors of `lmk encode`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sentence_transformers.base.modules import InputModule, Module, Transformer

from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import make_placer, open_encoder, require_dense
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import UsageError
from lmkcli.models.forward import Pooling
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.models.tokenizer_folder import counted_suffix, special_tokens_of
from lmkcli.pooling.placement import Input
from lmkcli.pooling.reductions import Marks, pool
from lmkcli.pooling.table import MEAN_ONLY, StateReduction
from lmkcli.spec.recipe import EncoderConfig, RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import FULL, Granularity, Window
from lmkcli.store.token_blocks import TokenBlock

_KEYS = (
    *("pool", "pool_package", "gran", "trained_poolers"),
    *("include_prompt", "append_eos", "window", "keep_space"),
)


class PlacedTransformer(Transformer):
    """The model with inputs from a pooler of lmk; 'marks' has the positions that the pooler marks.

    With a window, a longer text becomes several inputs, unless it is a query. 'texts' contains the text
    number of each input.
    """

    config_keys: list[str] = [*Transformer.config_keys, *_KEYS]  # noqa: RUF012 (the type of the base class)

    def __init__(
        self,
        model_name_or_path: str,
        *,
        pool: str,
        gran: str = "",
        window: str = "",
        **settings: Any,
    ) -> None:
        self.pool, self.gran, self.window = pool, gran, window
        self.pool_package: str = settings.pop("pool_package", "")
        self.trained_poolers: list[str] = settings.pop("trained_poolers", [])
        self.include_prompt: bool = settings.pop("include_prompt", True)
        self.append_eos: bool = settings.pop("append_eos", False)
        self.keep_space: bool = settings.pop("keep_space", False)
        super().__init__(model_name_or_path, **settings)
        self._fast.no_truncation()  # the file of the tokenizer may contain both
        self._fast.no_padding()

    @property
    def _fast(self) -> Any:
        tokenizer: Any = self.tokenizer
        return tokenizer.backend_tokenizer

    def preprocess(
        self,
        inputs: Sequence[Any],
        prompt: str | None = None,
        processing_kwargs: Any = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """input_ids, attention_mask and marks, [inputs, longest], padded on the right; texts [inputs]."""
        if not all(isinstance(text, str) for text in inputs):
            raise UsageError("this model reads only texts: give a list of strings")
        by_text = self._placed(list(inputs), prompt or "", settings)
        placed = [one for of_text in by_text for one in of_text]
        # Boolean masks [inputs, longest] select the positions of the ids, and of the marks
        lengths = torch.tensor([len(one.ids) for one in placed])
        mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
        ids = torch.full(mask.shape, self.config.pad_token_id or 0, dtype=torch.long)
        ids[mask] = torch.from_numpy(np.concatenate([one.ids for one in placed])).long()
        marks = torch.zeros(mask.shape, dtype=torch.bool)
        for row, one in zip(marks, placed, strict=True):
            row[torch.from_numpy(one.marks).long()] = True
        inputs_of = torch.tensor([len(of_text) for of_text in by_text])
        texts = torch.arange(len(by_text)).repeat_interleave(inputs_of)
        return {
            "input_ids": ids, "attention_mask": mask.long(), "marks": marks, "texts": texts,
            "modality": "text",
        }  # fmt: skip

    def _placed(self, texts: list[str], prompt: str, settings: dict[str, Any]) -> list[list[Input]]:
        """Return the inputs of each text: one, or one for each window."""
        whole = not self.window or settings.get("task") == "query" or settings.get("max_length")
        by_task = {"query": self.query_length, "document": self.document_length}
        limit = settings.get("max_length") or by_task.get(settings.get("task", ""))
        limit = int(limit or self.max_seq_length or self.config.max_position_embeddings)
        side = EncoderConfig(
            model="", weights="", tokenizer="", prompt=prompt, pool=self.pool,
            gran=Granularity(self.gran),
            max_length=limit if whole else Window(self.window).positions,
            window=FULL if whole else Window(self.window),
            include_prompt=self.include_prompt, append_eos=self.append_eos, keep_space=self.keep_space,
        )  # fmt: skip
        special = special_tokens_of(self.tokenizer, side)
        placer = make_placer(side, special)
        tokenizer = Tokenizer(
            self._fast, special, side.prompt, side.splitter, keep_space=side.keep_space,
            hidden_suffix=None if side.include_prompt else counted_suffix(self.tokenizer, special),
        )  # fmt: skip
        tokenized = tokenizer(texts)
        return [one.inputs for one in placer.place(TokenBlock.of(tokenized)).split()]

    def forward(self, features: dict[str, Any], **settings: Any) -> dict[str, Any]:
        """Add 'token_embeddings' [inputs, longest, dim]; marks and texts do not go to the model."""
        kept = {name: features.pop(name) for name in ("marks", "texts")}
        return {**super().forward(features, **settings), **kept}


class MarkedPooling(Module):
    """The mean, or other reductions, of the marked states of each input; then the mean of its inputs.

    It has no weights.
    """

    config_keys: list[str] = ["reductions"]  # noqa: RUF012 (the type of the base class)

    def __init__(self, reductions: Sequence[StateReduction] = MEAN_ONLY) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reductions = list(reductions)
        self.pooling = Pooling(torch.nn.Identity(), torch.nn.Identity(), self.reductions)

    def forward(self, features: dict[str, Any], **settings: Any) -> dict[str, Any]:
        """Add 'sentence_embedding' [texts, dim]: averaged in float32, returned in the dtype of the states."""
        states, marks = features["token_embeddings"], features["marks"]
        # Segment means: of the marked states [inputs * longest, dim] of each input, then of each text
        counts = marks.sum(1).cpu().numpy()
        inputs, positions = marks.nonzero(as_tuple=True)
        rows = Marks(marks.flatten().nonzero()[:, 0], inputs, counts, positions + 1)
        vectors = self.pooling(states.flatten(0, 1), rows)
        texts = features["texts"]
        inputs_of = texts.bincount().cpu().numpy()
        if len(texts) > len(inputs_of):
            one_each = torch.arange(len(texts), device=texts.device)
            vectors = pool(vectors, Marks(one_each, texts, inputs_of))
        return {**features, "sentence_embedding": vectors.to(states.dtype)}

    def save(self, output_path: str, *args: Any, **settings: Any) -> None:
        """Write the reductions."""
        self.save_config(output_path)


class LmkEncoder(InputModule):
    """A complete model that runs in lmk (TITE, M2-BERT, a pooler with weights), from a folder or the hub."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        resolved = resolve(RecipeOptions(model=name))
        sides = (resolved.recipe.doc, resolved.recipe.query)
        settings = EncodeSettings(dtype="fp32")
        require_dense(resolved.recipe.doc)
        self._name = name
        self._document, self._query = (
            open_encoder(side, resolved.folder, settings) for side in sides
        )

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **settings: Any) -> Self:
        """Open a folder or a model of the hub."""
        return cls(model_name_or_path)

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, **settings: Any
    ) -> dict[str, Any]:
        """Return the texts, their prompt, and their task (query or document)."""
        return {"texts": list(inputs), "prompt": prompt or "", "task": settings.get("task")}

    def forward(self, features: dict[str, Any], **settings: Any) -> dict[str, Any]:
        """Add 'sentence_embedding' [texts, dim] in float32."""
        side = self._query if features["task"] == "query" else self._document
        prompted = replace(side, tokenizer=replace(side.tokenizer, prompt=features["prompt"]))
        texts = [Query(str(number), text) for number, text in enumerate(features["texts"])]
        vectors = torch.from_numpy(prompted.queries(texts).vectors)
        return {**features, "sentence_embedding": vectors.to(side.model.device)}

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of a vector."""
        return self._document.dim

    def save(self, output_path: str, *args: Any, **settings: Any) -> None:
        """UsageError: the model exists only in the folder that it was opened from."""
        raise UsageError(f"copy {self._name} instead of saving it")
