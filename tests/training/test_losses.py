"""The notation of --loss: names, settings and weighted sums."""

import pytest
import torch

from lmkcli.errors import UsageError
from lmkcli.training.losses import LossNotation, Term
from lmkcli.training.objectives.infonce import InfoNCE
from lmkcli.training.objectives.margin_mse import MarginMSE
from lmkcli.training.objectives.objective import BatchFacts, Embedded
from lmkcli.training.objectives.orthogonal import Orthogonal
from lmkcli.training.train_settings import TrainSettings
from lmkcli.training.training_job import open_objective


def test_a_sum_has_the_needs_and_the_flags_of_all_its_terms() -> None:
    loss = LossNotation.parse("margin-mse+0.5*kl:temperature=0.1+infonce")
    assert loss.terms == (
        Term("margin-mse"),
        Term("kl", 0.5, (("temperature", "0.1"),)),
        Term("infonce"),
    )
    assert loss.needs == {"teacher", "negatives"}
    assert loss.flags == {"temperature", "symmetric"}
    assert loss.providers == []


def test_a_threshold_of_scores_needs_scores() -> None:
    assert LossNotation.parse("infonce").needs == frozenset()
    assert LossNotation.parse("infonce:threshold=3").needs == {"teacher"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("infonse", r"unknown loss .infonse.: did you mean infonce"),
        ("kl+", "write objectives joined by"),
        ("kl:", "write objectives joined by"),
        ("kl:temperature", "write settings of kl as NAME=VALUE"),
        ("x*kl", "the weight 'x' must be a number above 0"),
        ("0*kl", "the weight '0' must be a number above 0"),
        ("nan*kl", "the weight 'nan' must be a number above 0"),
        ("opl:temperature=1", "--loss opl: unknown setting 'temperature'; it has none"),
        ("kl:temperature=hot", "--loss kl:temperature=hot: write a number$"),
        ("kl:temperature=nan", "--loss kl:temperature=nan: write a number$"),
        ("margin-mse:pairs=some", "--loss margin-mse:pairs=some: write positive or all$"),
        (
            "kl:infonce=0,infonce=1",
            "--loss 'kl:infonce=0,infonce=1': the setting infonce is given twice",
        ),
        (
            "insent:margin=1",
            "--loss insent: unknown setting 'margin'; its settings are temperature",
        ),
    ],
)
def test_a_wrong_loss_is_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_objective(TrainSettings(loss=text))


def test_flags_that_no_term_has_are_refused() -> None:
    with pytest.raises(UsageError, match="--symmetric has no effect with --loss kl\\+opl"):
        TrainSettings(loss="kl+opl", symmetric=True)
    assert TrainSettings(loss="kl+infonce", symmetric=True).symmetric


def test_the_setting_of_a_term_wins_over_the_flag() -> None:
    made = open_objective(TrainSettings(loss="infonce:temperature=0.5", temperature=0.1))
    assert made == InfoNCE(temperature=0.5)


def test_a_term_has_several_settings() -> None:
    made = open_objective(TrainSettings(loss="margin-mse:scale=2.5,pairs=all"))
    assert made == MarginMSE(scale=2.5, pairs="all")


def test_a_weighted_sum_is_the_sum_of_its_weighted_terms() -> None:
    rng = torch.Generator().manual_seed(1)
    queries = Embedded(torch.randn(3, 4, generator=rng))
    passages = Embedded(torch.randn(3, 4, generator=rng))
    facts = BatchFacts(torch.arange(3).reshape(3, 1))
    made = open_objective(TrainSettings(loss="0.25*infonce:temperature=1+2*opl"))
    found = made(queries, passages, facts)
    first = InfoNCE(temperature=1.0)(queries, passages, facts)
    second = Orthogonal()(queries, passages, facts)
    assert float(found.total) == pytest.approx(float(0.25 * first.total + 2 * second.total))
    assert found.parts == {**first.parts, **second.parts}
