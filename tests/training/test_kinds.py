"""Models that lmk itself runs are trained too: TITE, M2-BERT, latent attention. Their folders open alike."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from lmkcli.data.collection import Query
from lmkcli.encoding.encoder import open_encoder
from lmkcli.encoding.resolution import resolve
from lmkcli.errors import UsageError
from lmkcli.models.heads import LatentAttention, latent_file_names, open_latent
from lmkcli.plugins.m2bert.config import M2BertConfig
from lmkcli.plugins.m2bert.model import M2BertModel
from lmkcli.plugins.tite.config import TiteConfig
from lmkcli.plugins.tite.model import TiteModel
from lmkcli.progress import Report
from lmkcli.spec.recipe import RecipeOptions
from lmkcli.spec.settings import EncodeSettings
from lmkcli.training import training_job
from lmkcli.training.loop import training_run as execution
from lmkcli.training.train_settings import TrainSettings
from tests import tiny

LENGTH = 32
TEXTS = ["one two three", "the rivers run " * 12, "x"]
SETTINGS = TrainSettings(
    steps=3, batch_size=6, lr=1e-2, dtype="fp32", device="cpu", temperature=0.1
)


def tite(folder: Path) -> None:
    config = TiteConfig(
        vocab_size=tiny.VOCABULARY, num_hidden_layers=4, hidden_sizes=[16, 16, 32, 64],
        num_attention_heads=4, intermediate_sizes=64, max_position_embeddings=LENGTH,
        kernel_sizes=[None, 4, 4, 3], strides=[None, 4, 4, 3], initializer_range=0.3,
    )  # fmt: skip
    TiteModel(config).save_pretrained(folder)
    tiny.wordpiece(markers=False).save_pretrained(folder)


def m2bert(folder: Path) -> None:
    config = M2BertConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=tiny.WIDTH, intermediate_size=64, num_hidden_layers=2,
        max_position_embeddings=LENGTH, hyena_filter_order=16, initializer_range=0.2,
    )  # fmt: skip
    M2BertModel(config).save_pretrained(folder)
    tiny.wordpiece().save_pretrained(folder)


def latent(folder: Path) -> None:
    tiny.save(folder, "bert")
    (folder / "latent_attn_model").mkdir()
    head = LatentAttention(tiny.WIDTH, 8)
    weights = {name: value.clone() for name, value in latent_file_names(head.state_dict()).items()}
    save_file(weights, folder / "latent_attn_model" / "model.safetensors")


BUILDERS = {"tite": tite, "m2bert": m2bert, "latent": latent}
Base = tuple[str, Path]


@pytest.fixture(scope="module", params=BUILDERS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The name of a kind, and a folder of it."""
    folder = tmp_path_factory.mktemp("base") / request.param
    torch.manual_seed(0)
    BUILDERS[request.param](folder)
    return request.param, folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    texts = [(tiny.sentence(i, 4), f"{tiny.sentence(i, 20)} number {i}") for i in range(30)]
    path.write_text("".join(json.dumps({"query": q, "pos": [p]}) + "\n" for q, p in texts))
    return path


@pytest.fixture(scope="module")
def trained(base: Base, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "model"
    options = RecipeOptions(model=str(base[1]), query_prompt="ask: ", max_length=24)
    execution.run(training_job.plan([str(pairs)], options, SETTINGS), folder, Report())
    return folder


def vectors(folder: Path, side: str = "doc") -> np.ndarray:
    resolved = resolve(RecipeOptions(model=str(folder)))
    encoder = open_encoder(
        getattr(resolved.recipe, side), resolved.folder, EncodeSettings(dtype="fp32", device="cpu")
    )
    return encoder.queries([Query(str(i), text) for i, text in enumerate(TEXTS)]).vectors


def test_it_has_learned_and_says_how_it_is_used(base: Base, trained: Path) -> None:
    asked = resolve(RecipeOptions(model=str(base[1]), query_prompt="ask: ", max_length=24)).recipe
    after = resolve(RecipeOptions(model=str(trained))).recipe
    for side in ("doc", "query"):
        wanted, found = getattr(asked, side), getattr(after, side)
        for name in ("pool", "similarity", "normalize", "prompt", "max_length"):
            assert getattr(found, name) == getattr(wanted, name), name
    assert np.abs(vectors(trained) - vectors(base[1])).max() > 1e-3


def test_sentence_transformers_makes_the_same_vectors(trained: Path) -> None:
    there = SentenceTransformer(str(trained), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(there.encode_document(TEXTS), vectors(trained), atol=1e-5)
    np.testing.assert_allclose(there.encode_query(TEXTS), vectors(trained, "query"), atol=1e-5)


def test_it_is_trained_again(trained: Path, pairs: Path, tmp_path: Path) -> None:
    """What a training wrote is a base as any other; without steps to speak of it stays what it is."""
    settings = replace(SETTINGS, steps=1, lr=1e-12, weight_decay=0.0)
    execution.run(
        training_job.plan([str(pairs)], RecipeOptions(model=str(trained)), settings),
        tmp_path / "m",
        Report(),
    )
    np.testing.assert_allclose(vectors(tmp_path / "m"), vectors(trained), atol=1e-5)


def test_states_that_cannot_be_computed_again_are_refused(base: Base, pairs: Path) -> None:
    settings = replace(SETTINGS, gradient_checkpointing=True)
    plan = training_job.plan(
        [str(pairs)], RecipeOptions(model=str(base[1]), max_length=24), settings
    )
    if base[0] == "latent":  # its encoder is a BERT, which can
        assert training_job.open_trainable(plan)
        return
    with pytest.raises(UsageError, match=r"gradient-checkpointing"):
        training_job.open_trainable(plan)


def test_a_latent_attention_is_learned_with_its_encoder(
    pairs: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    latent(tmp_path / "base")
    plan = training_job.plan(
        [str(pairs)], RecipeOptions(model=str(tmp_path / "base"), max_length=24), SETTINGS
    )
    execution.run(plan, tmp_path / "model", Report())
    name = "latent_attn_model/model.safetensors"
    before, after = load_file(tmp_path / "base" / name), load_file(tmp_path / "model" / name)
    assert before.keys() == after.keys()
    assert all(not torch.equal(value, after[key]) for key, value in before.items())
    shutil.rmtree(tmp_path / "base")
    open_latent((tmp_path / "model" / name).parent)


def test_a_latent_attention_starts_with_new_weights(pairs: Path, tmp_path: Path) -> None:
    """A model without one gets 64 latents of standard normal numbers (arXiv 2601.21525, §5)."""
    tiny.save(tmp_path / "base", "bert")
    options = RecipeOptions(model=str(tmp_path / "base"), pool="latent", max_length=24)
    plan = training_job.plan([str(pairs)], options, SETTINGS)
    assert any(
        "latent" in line and "new ones" in line for line in training_job.describe_training(plan)
    )
    first = [training_job.open_trainable(plan).pooling.token_head[0].latents for _ in range(2)]
    assert torch.equal(*first)
    assert first[0].shape == (64, tiny.WIDTH)
    assert abs(float(first[0].detach().std()) - 1) < 0.1
    execution.run(plan, tmp_path / "model", Report())
    learned = open_latent(tmp_path / "model" / "latent_attn_model")
    assert 0 < (learned.latents - first[0]).abs().max() < 1
    found, wanted = resolve(RecipeOptions(model=str(tmp_path / "model"))).recipe.doc, plan.resolved
    assert (found.pool, found.keep_space) == ("latent", wanted.recipe.doc.keep_space)
    there = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(there.encode_document(TEXTS), vectors(tmp_path / "model"), atol=1e-5)
    resolved = resolve(options)
    with pytest.raises(UsageError, match="lmk train --pool latent"):  # only a training creates it
        open_encoder(resolved.recipe.doc, resolved.folder, EncodeSettings(device="cpu"))


@pytest.mark.parametrize("first", ["plain", "pretrained as cosine"])
def test_a_training_without_normalisation_makes_a_model_for_dot_products(
    pairs: Path, tmp_path: Path, first: str
) -> None:
    """TITE's loss is of dot products (§3.4), also for a BERT that pre-training wrote as a cosine model."""
    tiny.save(tmp_path / "base", "bert")
    base = tmp_path / "base"
    if first != "plain":
        plan = training_job.plan([str(pairs)], RecipeOptions(model=str(base), pool="cls"), SETTINGS)
        execution.run(plan, tmp_path / "cosine", Report())
        base = tmp_path / "cosine"
    options = RecipeOptions(model=str(base), pool="cls", normalize=False)
    settings = replace(SETTINGS, loss="infonce", temperature=1.0)
    execution.run(training_job.plan([str(pairs)], options, settings), tmp_path / "dot", Report())
    made = resolve(RecipeOptions(model=str(tmp_path / "dot"))).recipe
    for side in (made.doc, made.query):
        assert (side.normalize, side.similarity) == (False, "dot")
    assert np.abs(np.linalg.norm(vectors(tmp_path / "dot"), axis=1) - 1).min() > 0.01
    with pytest.raises(UsageError, match="scored by cosine"):  # an encoding does not change a model
        resolve(RecipeOptions(model=str(tmp_path / "base"), normalize=False))
