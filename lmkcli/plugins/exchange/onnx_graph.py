"""ONNX: the forward pass of a model as a graph, checked with onnxruntime.

The graph maps placed inputs to vectors: hidden states, the mean of the marked states, sentence modules,
normalisation. Tokenizing and placing stay with the caller, so the folder has two more files: tokenizer.json,
and placement.json with the special tokens, lengths and prompts (docs/exchange.md has the code of a caller).
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import normalize

from lmkcli.artifact import manifest
from lmkcli.artifact.kinds import ExportFacts, ExportIdentity, ExportManifest
from lmkcli.artifact.outputs import write_once
from lmkcli.encoding.encoder import make_placer, open_forward
from lmkcli.encoding.resolution import ResolvedRecipe, open_pooler
from lmkcli.encoding.sentence_folder import check_exportable, run_by_lmk
from lmkcli.errors import DataError, UsageError
from lmkcli.models.forward import Finish, ForwardPass, ModelOptions
from lmkcli.models.model_files import loading
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.pooling.placement import Input, Placer
from lmkcli.pooling.table import MEAN_ONLY
from lmkcli.progress import Report
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.spec.values import Window

GRAPH, PLACEMENT, TOKENIZER = "model.onnx", "placement.json", "tokenizer.json"
TOLERANCE = 1e-4  # of a difference to lmk's vectors, relative to the length of a vector
INPUTS, OUTPUT = ("input_ids", "attention_mask", "marks"), "vectors"
_OPSET = 18
_ONE_FILE = 1_500_000_000  # bytes of weights; a protobuf has at most 2 GB
_LONGEST = 200  # tokens of a text of the check


class _Graph(nn.Module):
    """Placed inputs to vectors, with padding: what `ForwardPass` computes for packs."""

    def __init__(self, forward: ForwardPass, causal: bool, unit_length: bool) -> None:
        super().__init__()
        self.encoder, self.modules_after = forward.encoder, forward.pooling.sentence_modules
        self.settings = {"use_cache": False} if causal else {}
        self.unit_length = unit_length

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, marks: torch.Tensor
    ) -> torch.Tensor:
        """Return vectors [inputs, dim] of ids, filled positions and marks, each [inputs, length] of int64."""
        states = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **self.settings
        ).last_hidden_state
        # The mean of the marked states: the sum over positions of state * mark, over the number of marks
        weights = marks.to(states.dtype)
        sums = torch.einsum("bnd,bn->bd", states, weights)
        vectors: torch.Tensor = self.modules_after(sums / weights.sum(dim=1, keepdim=True))
        return normalize(vectors, dim=-1) if self.unit_length else vectors


def export_graph(
    resolved: ResolvedRecipe, folder: Path, report: Report = Report()
) -> dict[str, Any]:
    """Write `folder` atomically: the graph, the tokenizer, and the facts for placing. Return facts about it.

    UsageError for a model without a graph; DataError if torch cannot write the graph, or if onnxruntime
    computes other vectors from it. In both cases, no folder is written.
    """
    doc, source = resolved.recipe.doc, resolved.folder
    check_exportable(resolved)
    if run_by_lmk(resolved):
        raise UsageError(
            f"--to onnx: {source.name} has layers that ONNX cannot express (TITE, M2-BERT or weights of "
            "a pooler); use --to sentence-transformers"
        )
    if open_pooler(doc.pool).reductions != MEAN_ONLY or source.word_weights:
        raise UsageError(
            f"--to onnx: the graph takes the mean of marked states, and {source.name} pools in another way "
            f"({doc.pool}{' with weights of tokens' if source.word_weights else ''}); use --to "
            "sentence-transformers"
        )
    if source.window:
        report.note(
            f"{source.name} declares windows of {Window(source.window).length}; the graph reads a text of "
            f"up to {doc.max_length} positions at once, as with --window full"
        )
    described = ExportManifest(
        identity=ExportIdentity(to="onnx", recipe=resolved.recipe),
        facts=ExportFacts(
            **manifest.environment(report.call),
            made_of=source.name,
            models=resolved.recipe.located(),
        ),
    )
    write_once(folder, described, lambda growing: _write(resolved, growing))
    return dict(json.loads((folder / PLACEMENT).read_text("utf-8"))["graph"])


def _write(resolved: ResolvedRecipe, growing: Path) -> None:
    doc, source = resolved.recipe.doc, resolved.folder
    tokenizer = open_tokenizer(source, doc)
    placer = make_placer(doc, tokenizer.special)
    # trainable: the graph needs the ordinary layers of the model
    options = ModelOptions("fp32", "cpu", doc.trust_remote_code, trainable=True)
    forward = open_forward(doc, source, options).requires_grad_(False).eval()
    inputs = _probes(placer, forward)
    with torch.inference_mode():
        ours = forward(inputs)
        ours = Finish(True, 0, doc.normalize)(ours, torch.ones(len(inputs), dtype=torch.long))
    config: Any = forward.encoder.config
    padding = config.get_text_config().pad_token_id or 0
    _export(forward, resolved, _padded(inputs, padding), growing / GRAPH)
    difference = _difference(growing / GRAPH, inputs, padding, ours.numpy())
    if not difference < TOLERANCE:
        raise DataError(
            f"onnxruntime computes other vectors from the graph of {source.name} (difference "
            f"{difference:.1e}, allowed {TOLERANCE:.0e}); export the model to sentence-transformers"
        )
    tokenizer.fast.save(str(growing / TOKENIZER))
    graph = {
        "dimensions": ours.shape[1],
        "difference": difference,
        "opset": _OPSET,
        "normalize": doc.normalize,
    }
    described = _placement(resolved, tokenizer, padding) | {"graph": graph}
    text = json.dumps(described, indent=1, ensure_ascii=False)
    (growing / PLACEMENT).write_text(text + "\n", encoding="utf-8")


def _placement(resolved: ResolvedRecipe, tokenizer: Tokenizer, padding: int) -> dict[str, Any]:
    """Return the facts that a caller needs to place the tokens of a text."""
    special, doc = tokenizer.special, resolved.recipe.doc

    def side(config: EncoderConfig) -> dict[str, Any]:
        return {"prompt": config.prompt, "max_length": config.max_length}

    return {
        "pool": doc.pool,
        "gran": str(doc.gran),
        "prefix": list(special.prefix),
        "suffix": list(special.suffix),
        "cls": special.cls,
        "landmark": special.landmark,
        "padding": padding,
        "keep_space": doc.keep_space,
        "cuts_start": special.cuts_start,
        "include_prompt": doc.include_prompt,
        "prompt_in_chunks": doc.landmark_token is not None,
        "document": side(doc),
        "query": side(resolved.recipe.query),
        "similarity": doc.similarity,
    }


def _probes(placer: Placer, forward: ForwardPass) -> list[Input]:
    """Return placed texts of random tokens and several lengths: the empty text, and one that is cut."""
    config: Any = forward.encoder.config
    size = min(config.get_text_config().vocab_size, 30_000)
    longest = min(placer.limit + 1, _LONGEST)
    rng = np.random.default_rng(0)
    inputs: list[Input] = []
    for length in (0, 1, 17, longest // 2, longest):
        ids = rng.integers(size // 2, size, length).astype(np.int32)
        (one,) = placer.place_text(ids).inputs
        inputs.append(one._replace(groups=one.groups + len(inputs)))  # a vector for each input
    return inputs


def _padded(inputs: list[Input], padding: int) -> tuple[torch.Tensor, ...]:
    """Return ids, filled positions and marks, each [inputs, longest] of int64."""
    shape = len(inputs), max(len(one.ids) for one in inputs)
    ids, filled, marks = torch.full(shape, padding), torch.zeros(shape), torch.zeros(shape)
    for row, one in enumerate(inputs):
        ids[row, : len(one.ids)] = torch.from_numpy(one.ids)
        filled[row, : len(one.ids)] = 1
        marks[row, torch.from_numpy(one.marks).long()] = 1
    return ids.long(), filled.long(), marks.long()


def _export(
    forward: ForwardPass, resolved: ResolvedRecipe, example: tuple[torch.Tensor, ...], path: Path
) -> None:
    """Write the graph. DataError if torch cannot follow the code of the model."""
    source, doc = resolved.folder, resolved.recipe.doc
    module: Any = forward.encoder
    module.set_attn_implementation("eager")  # instead of lmk's packed attention
    graph = _Graph(forward, source.causal, doc.normalize).eval()
    dynamic = {0: torch.export.Dim("inputs"), 1: torch.export.Dim("length")}
    failure = "cannot be written as an ONNX graph"
    with _quiet(), loading(f"the model of {source.name}", failure):
        torch.onnx.export(
            graph,
            example,
            str(path),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            opset_version=_OPSET,
            dynamic_shapes=dict.fromkeys(INPUTS, dynamic),
            external_data=forward.model.weight_bytes > _ONE_FILE,
            dynamo=True,
            verbose=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings of torch about its own code and about missing packages that no model here needs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _difference(path: Path, inputs: list[Input], padding: int, ours: NDArray[np.float32]) -> float:
    """Return the largest difference between onnxruntime and lmk, over the length of each vector.

    onnxruntime reads all inputs in one batch, and each input in a batch of its own.
    """
    with loading(f"the graph {path.name}"):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        batches = [list(range(len(inputs))), *([number] for number in range(len(inputs)))]
        worst = 0.0
        for batch in batches:
            tensors = _padded([inputs[number] for number in batch], padding)
            feeds = {name: tensor.numpy() for name, tensor in zip(INPUTS, tensors, strict=True)}
            (theirs,) = session.run([OUTPUT], feeds)
            lengths = np.linalg.norm(ours[batch], axis=1, keepdims=True)
            worst = max(worst, float(np.abs((theirs - ours[batch]) / lengths).max()))
    return worst
