"""Every objective against official numbers, against plain loops in float64, and its gradient."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmkcli import catalog
from lmkcli.errors import DataError
from lmkcli.training.objectives.composed import Matryoshka
from lmkcli.training.objectives.objective import BatchFacts, Embedded, Objective, scores
from lmkcli.training.train_settings import TrainSettings

PARITY = Path(__file__).parents[2] / "fixtures" / "parity"
NAN = math.nan
Vectors = list[list[Tensor]]  # texts, each with its vectors


def objective(name: str, **settings: Any) -> Objective:
    made: Objective = catalog.LOSSES.load(name)(**settings)
    return made


def embedded(texts: Vectors, late: bool) -> Embedded:
    flat = torch.stack([vector for text in texts for vector in text])
    return Embedded(flat, torch.tensor([len(text) for text in texts]) if late else None)


class Case:
    """A random batch: three queries with 3, 2 and 3 passages, in two documents, some scores missing."""

    def __init__(self, late: bool = False) -> None:
        make = torch.Generator().manual_seed(7)
        lengths = [3, 1, 2, 4, 2, 3, 1, 5] if late else [1] * 8
        self.late = late
        self.queries = [self._vectors(make, 2 if late else 1) for _ in range(3)]
        self.passages = [self._vectors(make, length) for length in lengths]
        self.groups = [[0, 1, 2], [3, 4], [5, 6, 7]]
        self.teacher = [[3.0, 1.0, NAN], [NAN, 2.0], [0.5, 2.5, -1.0]]
        self.excluded = {(0, 4), (2, 0)}
        self.sequence = [0, 0, 0, 1, 1, 0, 0, 1]

    @staticmethod
    def _vectors(make: torch.Generator, count: int) -> list[Tensor]:
        found = torch.randn(count, 6, generator=make, dtype=torch.float64)
        return list(torch.nn.functional.normalize(found, dim=1))

    @property
    def facts(self) -> BatchFacts:
        excluded = torch.zeros(3, 8, dtype=torch.bool)
        for query, passage in self.excluded:
            excluded[query, passage] = True
        make = torch.Generator().manual_seed(8)
        return BatchFacts(
            torch.tensor([row + [-1] * (3 - len(row)) for row in self.groups]),
            torch.tensor([row + [NAN] * (3 - len(row)) for row in self.teacher]),
            excluded,
            torch.tensor(self.sequence),
            torch.randn(3, 6, generator=make, dtype=torch.float64),
            torch.randn(8, 6, generator=make, dtype=torch.float64),
        )

    def loss(self, made: Objective) -> float:
        queries, passages = embedded(self.queries, self.late), embedded(self.passages, self.late)
        return float(made(queries, passages, self.facts).total)

    def score(self, query: int, passage: int) -> float:
        return sum(max(float(q @ p) for p in self.passages[passage]) for q in self.queries[query])


def surprise(logits: dict[int, float], target: int) -> float:
    return math.log(sum(math.exp(value) for value in logits.values())) - logits[target]


def softmax(values: Sequence[float]) -> list[float]:
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def plain_infonce(case: Case, tau: float) -> float:
    terms = []
    for q, group in enumerate(case.groups):
        allowed = [p for p in range(8) if (q, p) not in case.excluded]
        terms.append(surprise({p: case.score(q, p) / tau for p in allowed}, group[0]))
    return mean(terms)


def plain_symmetric(case: Case, tau: float) -> float:
    terms = []
    for q, group in enumerate(case.groups):
        asked = [o for o in range(3) if (o, group[0]) not in case.excluded]
        terms.append(surprise({o: case.score(o, group[0]) / tau for o in asked}, q))
    return (plain_infonce(case, tau) + mean(terms)) / 2


def plain_m3(case: Case, tau: float) -> float:
    total = 0.0
    for q, group in enumerate(case.groups):
        known = [i for i, score in enumerate(case.teacher[q]) if not math.isnan(score)]
        if 0 in known:
            weights = dict(zip(known, softmax([case.teacher[q][i] for i in known]), strict=True))
        else:
            weights = {0: 1.0}
        for i, weight in weights.items():
            allowed = [p for p in range(8) if p not in group[:i] and (q, p) not in case.excluded]
            total += weight * surprise({p: case.score(q, p) / tau for p in allowed}, group[i])
    return total / 3


def scored(case: Case, query: int) -> list[tuple[int, float]]:
    """A query's own passages that have a teacher score, and it."""
    pairs = zip(case.groups[query], case.teacher[query], strict=True)
    return [(passage, score) for passage, score in pairs if not math.isnan(score)]


def plain_kl(case: Case, tau: float) -> float:
    total = 0.0
    for q in range(3):
        rows = scored(case, q)
        wanted = softmax([score for _, score in rows])
        got = softmax([case.score(q, p) / tau for p, _ in rows])
        total -= sum(w * math.log(g) for w, g in zip(wanted, got, strict=True))
    return total / 3 + plain_infonce(case, tau)


def plain_late_kd(case: Case, _: float) -> float:
    total = 0.0
    for q in range(3):
        rows = scored(case, q)
        student = [case.score(q, p) for p, _ in rows]
        low, high = min(student), max(student)
        got = softmax([(s - low) / max(high - low, 1e-8) for s in student])
        wanted = softmax([score for _, score in rows])
        total += sum(w * math.log(w / g) for w, g in zip(wanted, got, strict=True))
    return total / 3


def plain_margin(case: Case, _: float) -> float:
    errors = []
    for q, group in enumerate(case.groups):
        for i in range(1, len(group)):
            wanted = case.teacher[q][0] - case.teacher[q][i]
            if not math.isnan(wanted):
                errors.append((case.score(q, group[0]) - case.score(q, group[i]) - wanted) ** 2)
    return mean(errors)


def plain_all_margins(case: Case, _: float) -> float:
    """TITE's Margin-MSE (Schlatt et al. 2025, §3.4): every pair of a query's passages."""
    errors = []
    for q in range(3):
        rows = [(case.score(q, p), score) for p, score in scored(case, q)]
        for i, (first, wanted) in enumerate(rows):
            errors += [(first - s - (wanted - y)) ** 2 for s, y in rows[i + 1 :]]
    return mean(errors)


def plain_threshold(case: Case, tau: float, threshold: float = 2.5) -> float:
    """Own passages are negatives if the teacher's score is lower by more than the threshold."""
    terms = []
    for q, group in enumerate(case.groups):
        known = dict(zip(group, case.teacher[q], strict=True))
        close = {p for p in group[1:] if known[group[0]] - known[p] <= threshold}
        allowed = [p for p in range(8) if (q, p) not in case.excluded and p not in close]
        terms.append(surprise({p: case.score(q, p) / tau for p in allowed}, group[0]))
    return mean(terms)


def plain_opl(case: Case, _: float) -> float:
    pairs = [(q, p, i == 0) for q, group in enumerate(case.groups) for i, p in enumerate(group)]
    return mean([(case.score(q, p) - label) ** 2 for q, p, label in pairs])


def plain_prediction(case: Case, _: float) -> float:
    facts = case.facts
    total = 0.0
    for texts, targets in (
        (case.queries, facts.query_targets),
        (case.passages, facts.passage_targets),
    ):
        assert targets is not None
        cosines = [
            float(text[0] @ to) / (math.sqrt(float(text[0] @ text[0])) * math.sqrt(float(to @ to)))
            for text, to in zip(texts, targets, strict=True)
        ]
        total += 1 - mean(cosines)
    return total


def plain_insent(case: Case, tau: float, weight: float = 0.1) -> float:
    inside: dict[int, list[float]] = {}
    across: dict[int, list[float]] = {}
    for q, (gold, *_) in enumerate(case.groups):
        home = case.sequence[gold]
        allowed = [p for p in range(8) if (q, p) not in case.excluded]
        logits = {p: case.score(q, p) / tau for p in allowed}
        same = {p: v for p, v in logits.items() if case.sequence[p] == home}
        others = {p: v for p, v in logits.items() if case.sequence[p] != home or p == gold}
        inside.setdefault(home, []).append(surprise(same, gold))
        across.setdefault(home, []).append(surprise(others, gold))
    first, second = (mean([mean(each) for each in d.values()]) for d in (inside, across))
    return weight * first + (1 - weight) * second


ORACLES: list[tuple[str, dict[str, Any], Callable[..., float], float, float | None]] = [
    ("infonce", {}, plain_infonce, 0.02, 1.0),
    ("infonce", {"temperature": 0.3}, plain_infonce, 0.3, 0.3),
    ("infonce", {"symmetric": True}, plain_symmetric, 0.02, 1.0),
    ("m3-kd", {}, plain_m3, 0.02, 1.0),
    ("kl", {}, plain_kl, 0.02, 1.0),
    ("late-kd", {}, plain_late_kd, 1.0, 1.0),
    ("kl", {"infonce": 0.0}, lambda *given: plain_kl(*given) - plain_infonce(*given), 0.02, 1.0),
    ("margin-mse", {}, plain_margin, 1.0, 1.0),
    ("margin-mse", {"pairs": "all"}, plain_all_margins, 1.0, 1.0),
    ("infonce", {"threshold": 2.5}, plain_threshold, 0.02, 1.0),
    ("opl", {}, plain_opl, 1.0, None),
    ("prediction", {}, plain_prediction, 1.0, None),
    ("insent", {}, plain_insent, 0.05, 1.0),
]


@pytest.mark.parametrize(("name", "settings", "plain", "single", "late"), ORACLES)
def test_an_objective_is_what_plain_loops_compute(
    name: str, settings: dict[str, Any], plain: Any, single: float, late: float | None
) -> None:
    assert Case().loss(objective(name, **settings)) == pytest.approx(plain(Case(), single))
    if late is not None:
        case = Case(late=True)
        assert case.loss(objective(name, **settings)) == pytest.approx(plain(case, late))


def test_every_objective_has_an_oracle() -> None:
    assert {name for name, *_ in ORACLES} == set(catalog.LOSSES)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", catalog.LOSSES)
def test_the_gradient_with_respect_to_vectors_is_right(name: str, late: bool) -> None:
    if late and name in ("opl", "prediction"):
        pytest.skip("needs one vector per text")
    case = Case(late)
    queries, passages = embedded(case.queries, late), embedded(case.passages, late)
    made = objective(name)

    def total(q: Tensor, p: Tensor) -> Tensor:
        loss = made(replace(queries, vectors=q), replace(passages, vectors=p), case.facts)
        assert not any(part.requires_grad for part in loss.parts.values())
        return loss.total

    leaves = [texts.vectors.clone().requires_grad_() for texts in (queries, passages)]
    assert torch.autograd.gradcheck(total, leaves)


@pytest.mark.parametrize("name", catalog.LOSSES)
def test_the_own_slice_of_a_gathered_batch_gets_the_gradient_of_the_whole(name: str) -> None:
    case, made = Case(), objective(name)
    queries, passages = embedded(case.queries, False), embedded(case.passages, False)
    whole = [texts.vectors.clone().requires_grad_() for texts in (queries, passages)]
    made(Embedded(whole[0]), Embedded(whole[1]), case.facts).total.backward()
    local = [whole[0].detach()[:2].requires_grad_(), whole[1].detach()[:5].requires_grad_()]
    gathered = [
        Embedded(torch.cat([mine, all_.detach()[len(mine) :]]))
        for mine, all_ in zip(local, whole, strict=True)
    ]
    made(*gathered, case.facts).total.backward()
    for mine, all_ in zip(local, whole, strict=True):
        assert mine.grad is not None
        assert all_.grad is not None
        assert torch.equal(mine.grad, all_.grad[: len(mine)])


@pytest.mark.parametrize("name", catalog.LOSSES)
def test_one_query_alone_has_a_finite_loss_and_gradient(name: str) -> None:
    case = Case()
    query = case.queries[0][0][None].clone().requires_grad_()
    passages = Embedded(torch.stack([text[0] for text in case.passages[:2]]))
    facts = BatchFacts(
        torch.tensor([[0, 1]]),
        torch.tensor([[NAN, NAN]]),
        sequence=torch.tensor([0, 0]),
        query_targets=torch.ones(1, 6),
        passage_targets=torch.ones(2, 6),
    )
    loss = objective(name)(Embedded(query), passages, facts)
    loss.total.backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()


@pytest.mark.parametrize("name", catalog.LOSSES)
def test_a_missing_fact_is_refused(name: str) -> None:
    made = objective(name)
    if made.needs - {"negatives"}:
        with pytest.raises(DataError, match="needs"):
            made(
                Embedded(torch.ones(1, 4)),
                Embedded(torch.ones(1, 4)),
                BatchFacts(torch.zeros(1, 1).long()),
            )


def lmk_losses() -> tuple[Embedded, Embedded, BatchFacts, dict[str, float]]:
    file = np.load(PARITY / "lmk" / "losses.npz")
    facts = BatchFacts(torch.arange(12).view(3, 4), torch.tensor(file["teacher"]).view(3, 4))
    expected = {name: float(file[name]) for name in ("kd", "infonce")}
    return Embedded(torch.tensor(file["q"])), Embedded(torch.tensor(file["p"])), facts, expected


def test_landmark_poolings_loss_is_the_official_one() -> None:
    queries, passages, facts, expected = lmk_losses()
    found = objective("m3-kd")(queries, passages, facts)
    assert float(found.total) == pytest.approx(expected["kd"], rel=1e-5)
    found = objective("infonce")(queries, passages, facts)
    assert float(found.total) == pytest.approx(expected["infonce"], rel=1e-5)
    found = objective("kl")(queries, passages, facts)
    assert float(found.parts["infonce"]) == pytest.approx(expected["infonce"], rel=1e-5)


def test_m3_kd_of_a_teacher_who_is_sure_is_infonce() -> None:
    queries, passages, facts, expected = lmk_losses()
    for sure in ([100.0, -100.0, -100.0, -100.0], [NAN, 3.0, 2.0, 1.0]):
        known = replace(facts, teacher=torch.tensor([sure] * 3))
        found = objective("m3-kd")(queries, passages, known)
        assert float(found.total) == pytest.approx(expected["infonce"], rel=1e-5)


def unit(array: NDArray[np.float32]) -> Tensor:
    return torch.nn.functional.normalize(torch.tensor(array), dim=-1)


class Official:
    """The fixture of InSeNT: three documents of chunks and their queries."""

    def __init__(self) -> None:
        self.file = np.load(PARITY / "insent" / "insent.npz")
        said = json.loads((PARITY / "insent" / "insent.json").read_text())
        kept = ~self.file["pad"]
        starts = np.concatenate([[0], kept.sum(1).cumsum()])
        gold = [
            int(starts[doc] + i)
            for doc, each in enumerate(said["queries_chunk_indices"])
            for i in each
        ]
        self.facts = BatchFacts(
            torch.tensor(gold)[:, None], sequence=torch.tensor(np.nonzero(kept)[0])
        )
        self.kept, self.temperature = kept, 1 / said["scale"]

    def single(self) -> tuple[Embedded, Embedded]:
        queries, chunks = self.file["q"], self.file["chunks"][self.kept]
        return Embedded(unit(queries)), Embedded(unit(chunks))

    def late(self) -> tuple[Embedded, Embedded]:
        """Queries and chunks; the official code pads chunks with zero vectors, which are candidates too."""
        tokens = unit(self.file["chunk_tokens"][self.kept])
        longest = int((tokens.abs().sum(-1) > 0).sum(1).max())
        queries = unit(self.file["qt"])
        query_counts = torch.full((len(queries),), queries.shape[1])
        chunk_counts = torch.full((len(tokens),), longest)
        chunks = Embedded(tokens[:, :longest].flatten(0, 1), chunk_counts)
        return Embedded(queries.flatten(0, 1), query_counts), chunks


def test_insent_is_the_official_one() -> None:
    case = Official()
    found = objective("insent", temperature=case.temperature)(*case.single(), case.facts)
    assert float(found.total) == pytest.approx(float(case.file["loss_weighted"]), rel=1e-4)
    flat = objective("infonce", temperature=case.temperature)(*case.single(), case.facts)
    assert float(flat.total) == pytest.approx(float(case.file["loss_flat"]), rel=1e-4)


def test_late_insent_is_the_official_one() -> None:
    case = Official()
    found = scores(*case.late())
    wanted = torch.tensor(case.file["maxsim"])[:, torch.tensor(case.kept.ravel())]
    torch.testing.assert_close(found, wanted)
    loss = objective("insent")(*case.late(), case.facts)
    assert float(loss.total) == pytest.approx(float(case.file["loss_li"]), rel=1e-4)


def test_a_text_without_vectors_scores_nothing() -> None:
    passages = Embedded(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([1, 0, 1]))
    queries = Embedded(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert scores(queries, passages).tolist() == [[1.0, 0.0, -1.0]]


def test_scores_are_float32_whatever_the_vectors_are() -> None:
    half = Embedded(torch.ones(2, 300, dtype=torch.bfloat16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = scores(half, half)
    assert found.dtype == torch.float32
    assert found.tolist() == [[300.0] * 2] * 2


def test_matryoshka_sums_over_dimensions_normalised_anew() -> None:
    case = Case()
    queries, passages = embedded(case.queries, False), embedded(case.passages, False)
    made = objective("infonce")
    found = Matryoshka(made, (6, 3, 2))(queries, passages, case.facts)
    expected = 0.0
    for dim in (6, 3, 2):
        cut = [
            Embedded(torch.nn.functional.normalize(texts.vectors[:, :dim], dim=1))
            for texts in (queries, passages)
        ]
        part = float(made(*cut, case.facts).total)
        assert float(found.parts[f"infonce@{dim}"]) == pytest.approx(part)
        expected += part
    assert float(found.total) == pytest.approx(expected)


def test_matryoshka_needs_what_its_objective_needs_and_dims_that_there_are() -> None:
    assert Matryoshka(objective("kl"), (4,)).needs == {"teacher"}
    case = Case()
    with pytest.raises(Exception, match=r"--dims 7: .* 6"):
        Matryoshka(objective("infonce"), (7,))(
            embedded(case.queries, False), embedded(case.passages, False), case.facts
        )


@pytest.mark.parametrize("name", catalog.LOSSES)
def test_the_catalog_says_what_an_objective_needs_and_which_settings_it_has(name: str) -> None:
    """It is asked before torch is loaded, and the classes only afterwards."""
    row, made = catalog.LOSSES[name], objective(name)
    assert set(row.needs) == made.needs
    of_training = {field.name for field in fields(TrainSettings)}
    assert set(row.settings) == of_training & {field.name for field in fields(type(made))}
