"""Embeddings in memory, without a collection: python examples/similar_texts.py [MODEL]"""

import sys

import lmkcli

TEXTS = [
    "The train was late again.",
    "Our railway service is delayed once more.",
    "Basil wants sun and water.",
]


def main(model: str = "minilm") -> None:
    """Print the cosine of every pair of texts."""
    encoder = lmkcli.load_encoder(model, settings=lmkcli.EncodeSettings(dtype="fp32"))
    vectors = encoder.encode_documents(TEXTS).vectors
    for i, row in enumerate(vectors @ vectors.T):
        for j in range(i):
            print(f"{row[j]:.2f}  {TEXTS[j]} | {TEXTS[i]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
