"""lmk pretrain on the command line: an encoder and its vectors; and a new model from a file."""

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from lmkcli.plugins.pretrain.pretrain_settings import PretrainSettings
from lmkcli.plugins.pretrain.pretraining_job import BaseModelSpec, plan
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.training.data.sampling import ExampleBatch
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


def test_the_log_has_the_accuracy_of_masked_tokens_and_curves_share_a_figure(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    """M2-BERT, Table 7 and Figure 4: accuracies of two pre-trainings, in one figure."""
    words = ("pretrain", beir, "-m", tiny_model("bert"), "--objective", "mlm", "--max-length", 32)
    more = ("--steps", 60, "--batch-size", 8, "--dtype", "fp32", "--log-every", 20)
    lmk(*words, *more, "--lr", 5e-3, "-o", tmp_path / "fast")
    lmk(*words, *more, "--lr", 1e-9, "-o", tmp_path / "slow")
    logs = {
        name: [json.loads(line) for line in (tmp_path / name / "log.jsonl").open()]
        for name in ("fast", "slow")
    }
    last = {name: lines[-1]["accuracy"] for name, lines in logs.items()}
    assert 0 <= last["slow"] < last["fast"] <= 1
    assert logs["fast"][-1]["loss"] == pytest.approx(logs["fast"][-1]["mlm"], rel=1e-5)
    drawn = lmk("plot", tmp_path / "fast", tmp_path / "slow", "-o", tmp_path / "both.svg").out
    assert drawn.endswith(": 18 points, 6 lines\n")  # loss, learning rate and accuracy of each
    err = lmk(
        "plot", tmp_path / "fast", beir / "corpus.jsonl", "-o", tmp_path / "x.svg", code=2
    ).err
    assert "must be folders of trainings" in err


def test_held_out_texts_have_their_own_share_of_masks(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    """M2-BERT, App. A.3: masks of .3 in the training, and of .15 in the evaluation on other texts."""
    texts = [{"_id": str(n), "text": tiny.sentence(n, 20)} for n in range(9)]
    tiny.write_jsonl(tmp_path / "held.jsonl", texts)
    words = ("pretrain", beir, "-m", tiny_model("bert"), "--max-length", 32, "--no-whole-words")
    few = ("--steps", 40, "--batch-size", 8, "--dtype", "fp32", "--log-every", 1, "--lr", 1e-2)
    dev = ("--dev", tmp_path / "held.jsonl", "--dev-every", 20, "--dev-mask")
    folder = tmp_path / "model"
    done = lmk(*words, *few, *dev, 0.15, "-o", folder)
    assert "step 40: accuracy" in done.err
    lines = [json.loads(line) for line in (folder / "log.jsonl").open()]
    assert [line["step"] for line in lines if "dev" in line] == [20, 40]
    facts = json.loads((folder / "training.json").read_text())["dev"]
    assert facts["mask"] == 0.15
    lmk(*words, *few, *dev, 0.3, "-o", folder, code=3)  # not the same training
    assert "points" in lmk("plot", folder, "-o", tmp_path / "curves.svg").out
    for wrong in (("--dev-mask", 0.15), ("--objective", "retromae", *dev, 0.15)):
        assert "--dev" in lmk(*words, *few, *wrong, "-o", tmp_path / "x", code=2).err
    job = plan([str(beir)], BaseModelSpec(RecipeOptions(model=str(folder))), PretrainSettings())
    scored = job.held_out([str(tmp_path / "held.jsonl")], 1, 0.15, True).dev
    assert scored
    (place,) = scored.scorer.texts.values()  # type: ignore[attr-defined]
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    hits = hidden = 0
    rows = np.arange(9)
    for text in replace(place, masking=replace(place.masking, whole_words=False), seed=0)(
        ExampleBatch(0, rows, rows)
    ).texts:
        ids = torch.from_numpy(text.shown).long()[None]
        best = model(ids).logits[0].argmax(-1).numpy()
        hits += int((best == text.input.ids)[text.hidden].sum())
        hidden += len(text.hidden)
    assert hits
    assert hidden < 0.3 * sum(len(text["text"].split()) for text in texts) + 9
    assert facts["published"]["score"] == pytest.approx(hits / hidden, abs=1e-6)


def test_sources_are_mixed_as_blocks_and_single_texts(
    lmk: Lmk, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    words = ("-m", tiny_model("bert"), "--max-length", 32, *FEW, "--sampling-temperature", "inf")
    adam = ("--adam-betas", "0.9,0.98", "--adam-epsilon", 1e-6, "-o", tmp_path / "model")
    sources = (f"{beir},blocks=1,weight=7", f"{beir},blocks=0,weight=3")
    said = lmk("pretrain", *sources, *words, *adam).err
    assert re.search(r"\d+ blocks of 30 tokens", said)
    assert re.search(r"60 texts \(\d+ are cut\)", said)
    record = json.loads((tmp_path / "model" / "training.json").read_text())
    assert (record["settings"]["adam_betas"], record["settings"]["adam_epsilon"]) == (
        "0.9,0.98",
        1e-6,
    )
    for betas in ("0.9", "0.9,1", "a,b", "0.9,0.98,0.1"):
        err = lmk("pretrain", *sources, *words, "--adam-betas", betas, "-o", "m", code=2).err
        assert f"--adam-betas {betas}: write two numbers" in err
    err = lmk("train", f"{beir}:test,blocks=1", "-m", tiny_model("bert"), "-o", "m", code=2).err
    assert "blocks has no effect on examples" in err


RECIPES = [
    path
    for path in sorted((Path(__file__).parents[3] / "examples").glob("*.toml"))
    if "pretrain" in tomllib.loads(path.read_text())
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs_with_narrow_layers(
    lmk: Lmk, beir: Path, recipe: Path, tmp_path: Path
) -> None:
    """Only the widths, the length and the sizes are replaced; all other settings are those of the recipe."""
    wanted = tomllib.loads(recipe.read_text())["pretrain"]
    shape = json.loads((recipe.parents[1] / wanted["architecture"]).read_text())
    widths = ("hidden_size", "hidden_sizes", "intermediate_size", "intermediate_sizes")
    narrow = shape | {key: shape[key] // 16 for key in widths if key in shape}
    narrow |= {"vocab_size": tiny.VOCABULARY}
    narrow |= {key: 64 for key in ("long_conv_l_max", "max_position_embeddings") if key in shape}
    (tmp_path / "narrow.json").write_text(json.dumps(narrow))
    tiny.wordpiece(markers="tite" not in recipe.stem).save_pretrained(tmp_path / "tokenizer")
    words = ("--architecture", tmp_path / "narrow.json", "--tokenizer", tmp_path / "tokenizer")
    more = ("--max-length", 64, "--device", "cpu", *FEW, "-o", tmp_path / "model")
    lmk("pretrain", beir, "--config", recipe, *words, *more)
    training = json.loads((tmp_path / "model" / "training.json").read_text())
    small = {"steps", "batch_size", "dtype", "max_length", "architecture", "tokenizer", "device"}
    given = {name.replace("-", "_"): value for name, value in wanted.items()}
    kept = {name: value for name, value in given.items() if name not in small}
    assert kept.keys() >= {"objective", "lr", "warmup", "schedule"}
    assert {name: training["settings"][name] for name in kept} == kept
