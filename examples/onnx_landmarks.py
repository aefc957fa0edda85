"""Landmark vectors from a graph, without lmkcli and torch: python examples/onnx_landmarks.py [MODEL]

`main` exports the model with lmk. `Graph` is the code for your program: it places the landmarks and runs the
graph, for a model without prompts.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


class Graph:
    """The folder of an export (model.onnx, tokenizer.json, placement.json)."""

    def __init__(self, folder: Path) -> None:
        self.facts = json.loads((folder / "placement.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.session = onnxruntime.InferenceSession(str(folder / "model.onnx"))

    def place(self, text: str, length: int) -> list[int]:
        """The ids of a text: the first token, then the chunks, each with a landmark after it."""
        text = text if self.facts["keep_space"] else text.strip()
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        placed, gran = list(self.facts["prefix"]), int(self.facts["gran"])
        for start in range(0, max(len(ids), 1), gran):
            placed += [*ids[start : start + gran], self.facts["landmark"]]
        return placed[:length]

    def encode(self, texts: list[str], side: str = "document") -> np.ndarray:
        """The vectors of documents or queries, [texts, dimensions]."""
        rows = [self.place(text, self.facts[side]["max_length"]) for text in texts]
        shape = (len(rows), max(map(len, rows)))
        ids = np.full(shape, self.facts["padding"], np.int64)
        mask, marks = np.zeros_like(ids), np.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
            marks[number, : len(row)] = np.array(row) == self.facts["landmark"]
            if not marks[number].any():  # a text of one chunk that was cut: all positions count
                marks[number] = mask[number]
        feeds = {"input_ids": ids, "attention_mask": mask, "marks": marks}
        return self.session.run(["vectors"], feeds)[0]


def main(model: str = "minilm") -> None:
    """Export a model with landmarks, and compare the vectors of the graph with those of lmk."""
    import lmkcli

    texts = ["Green tea", "Let the dough rise overnight. Bake it hot, with steam."]
    with tempfile.TemporaryDirectory() as folder:
        settings = {"model": model, "pool": "lmk", "gran": "8", "max_length": 64}
        lmkcli.Export(to="onnx", output=f"{folder}/onnx", **settings).run()
        found = Graph(Path(folder, "onnx")).encode(texts)
        options = lmkcli.RecipeOptions(pool="lmk", gran="8", max_length=64)
        exact = lmkcli.EncodeSettings(dtype="fp32")
        wanted = lmkcli.load_encoder(model, options, settings=exact).encode_documents(texts)
        difference = np.abs(found - wanted.vectors).max()
    print(f"{len(found)} vectors; the largest difference is below 1e-5: {difference < 1e-5}")


if __name__ == "__main__":
    main(*sys.argv[1:])
