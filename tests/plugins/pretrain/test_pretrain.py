"""lmk pretrain on the command line: an encoder and its vectors; and a new model from a file."""

import json
from collections.abc import Callable
from pathlib import Path

from tests import tiny
from tests.conftest import Lmk

Models = Callable[[str], Path]
FEW = ("--steps", 2, "--batch-size", 4, "--dtype", "fp32", "--log-every", 1)


def test_from_texts_to_vectors(lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path) -> None:
    model, tokens = tmp_path / "model", tmp_path / "tokens"
    lmk("tokenize", beir, "-m", tiny_model("bert"), "-o", tokens)
    words = ("-m", tiny_model("bert"), "--objective", "retromae", "--pool", "lmk", "--gran", "4,8")
    more = ("--max-length", 32, *FEW, "-o", model)
    made = lmk("pretrain", f"{tokens},weight=2", beir, *words, *more, "--json").json
    assert made == {"output": str(model), "steps": 2}
    lines = [json.loads(line) for line in (model / "log.jsonl").read_text().splitlines()]
    assert {"mlm", "decoder", "loss"} <= lines[0].keys()
    shown = lmk("show", model, "--json").json
    assert [source["weight"] for source in shown["sources"]] == [2.0, 1.0]
    assert "2 steps" in lmk("pretrain", f"{tokens},weight=2", beir, *words, *more).out
    lmk("pretrain", f"{tokens},weight=2", beir, *words, *more, "--mask", 0.15, code=3)
    lmk("encode", beir, "-m", model, "-o", tmp_path / "vectors", "--dtype", "fp32")
    recipe = json.loads((tmp_path / "vectors" / "manifest.json").read_text())["identity"]["recipe"]
    assert (recipe["doc"]["pool"], recipe["doc"]["gran"]) == ("lmk", "4")


def test_a_dry_run_shows_masked_texts_and_writes_nothing(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    words = ("-m", tiny_model("bert"), "--objective", "retromae", "--pool", "lmk", "--gran", "4,8")
    more = ("--max-length", 32, "--steps", 9, "--batch-size", 4, "--dtype", "fp32", "--dry-run")
    shown = lmk("pretrain", beir, *words, *more).out
    assert "1 text (gran 4,8, " in shown
    assert "«[SEP]»" in shown
    assert "[MASK]" in shown
    assert "tokens/s in 5 steps" in shown
    facts = lmk("pretrain", beir, *words, *more, "--json", "-o", tmp_path / "model").json
    assert (facts["examples"], facts["steps"], facts["counted"]) == (60, 9, 9)
    assert not list(tmp_path.iterdir())


def test_a_new_model_with_flags_from_a_file(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    architecture = {
        "model_type": "m2-bert", "vocab_size": tiny.VOCABULARY, "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 1, "max_position_embeddings": 64,
        "hyena_filter_order": 16,
    }  # fmt: skip
    (tmp_path / "m2.json").write_text(json.dumps(architecture))
    config = tmp_path / "pretrain.toml"
    config.write_text(
        f"""[pretrain]
architecture = "{tmp_path / "m2.json"}"
tokenizer = "{tiny_model("bert")}"
max-length = 64
pad-to-max = false
steps = 2
batch-size = 4
mask = 0.15
"""
    )
    lmk("pretrain", beir, "--config", config, "-o", tmp_path / "short")
    facts = json.loads((tmp_path / "short" / "training.json").read_text())
    assert facts["settings"]["mask"] == 0.15
    lmk("encode", beir, "-m", tmp_path / "short", "-o", tmp_path / "vectors", "--dtype", "fp32")
    longer = architecture | {"max_position_embeddings": 96, "intermediate_size": 96}
    (tmp_path / "longer.json").write_text(json.dumps(longer))
    words = ("--architecture", tmp_path / "longer.json", "--tokenizer", tiny_model("bert"))
    again = ("--init-from", tmp_path / "short", "--no-pad-to-max", *FEW)
    done = lmk("pretrain", beir, *words, *again, "-o", tmp_path / "long")
    assert "repeated to their new length" in done.err
    assert "gated_layers" in done.err  # these weights have another shape


def test_missing_arguments_are_reported(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    out = ("-o", tmp_path / "model")
    assert "--architecture" in lmk("pretrain", beir, *out, code=2).err
    (tmp_path / "none.json").write_text("{}")
    words = ("--architecture", tmp_path / "none.json", "--tokenizer", tiny_model("bert"))
    assert "model_type" in lmk("pretrain", beir, *words, *out, code=3).err
    few = {"model_type": "bert", "vocab_size": 9, "hidden_size": 32, "num_attention_heads": 4}
    (tmp_path / "none.json").write_text(json.dumps(few))
    assert "has vocab_size 9" in lmk("pretrain", beir, *words, *out, code=3).err
    assert not (tmp_path / "model").exists()
