"""The task's loss and the token head's as one, against loops over rows and tokens."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attentune.data.dataset import LabelSpace
from attentune.training.objective import Denominators, Objective, build_objective

THREE = LabelSpace("classification", ("bad", "fair", "good"))
LABELS = np.array([0, 2, 1, 0, 2])
WEIGHTS = [0.5, 1.0, 4.0]
# A row with hard labels, one with soft ones, one with none, one of special tokens alone, one labelled throughout.
TOKEN_LABELS_BT = torch.tensor(
    [
        [-1, 0, 1, -1, -1, -1],
        [-1, 0.25, 0.5, 0.75, -1, -1],
        [-1, -1, -1, -1, -1, -1],
        [-1, -1, -1, -1, -1, -1],
        [1, 1, 0, 1, 0, 1],
    ]
)


def made(class_weights: list[float] | None = None, space: LabelSpace = THREE, **options: float) -> Objective:
    labels = LABELS if space is THREE else LABELS.astype(np.float32)
    return build_objective(space, labels, class_weights=class_weights, **options)


def output(rows: slice = slice(None), *, columns: int = 3, gate: bool = True) -> SimpleNamespace:
    """What a model would give for these rows, as leaves of the graph."""
    generator = torch.Generator().manual_seed(21)
    logits_BC = torch.randn(5, columns, generator=generator)[rows].requires_grad_()
    token_logits_BT2 = torch.randn(5, 6, 2, generator=generator)[rows].requires_grad_()
    return SimpleNamespace(logits=logits_BC, token_logits=token_logits_BT2 if gate else None)


def combined(objective: Objective, parts: list[slice], epoch: float = 0.0) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss of all rows as one optimiser step in these batches, and the gradients put together again."""
    denominators = objective.denominators(LABELS, int((TOKEN_LABELS_BT >= 0).sum()), epoch)
    total, gradients = torch.zeros(()), []
    for part in parts:
        given = output(part)
        sums_3 = objective.sums(given, torch.from_numpy(LABELS)[part], TOKEN_LABELS_BT[part])
        loss = denominators.combine(sums_3)
        loss.backward()
        total = total + loss.detach()
        gradients.append((given.logits.grad, given.token_logits.grad))
    return total, [torch.cat(parts) for parts in zip(*gradients, strict=True)]


def log_softmax(scores: list[float]) -> list[float]:
    log_total = math.log(math.fsum(math.exp(score) for score in scores))
    return [score - log_total for score in scores]


def written_out(share: float, class_weights: list[float] | None) -> float:
    """The combined loss of all rows: (1 - share) x the rows' weighted mean + share x the labelled tokens' mean."""
    weights, given = class_weights or [1.0, 1.0, 1.0], output()
    rows = [-weights[label] * log_softmax(given.logits[row].tolist())[label] for row, label in enumerate(LABELS)]
    tokens = []
    for row in range(5):
        for t in range(6):
            label = float(TOKEN_LABELS_BT[row, t])
            no, yes = log_softmax(given.token_logits[row, t].tolist())
            tokens += [-label * yes - (1 - label) * no] if label >= 0 else []
    assert len(tokens) == 11
    return (1 - share) * sum(rows) / sum(weights[label] for label in LABELS) + share * sum(tokens) / len(tokens)


@pytest.mark.parametrize("class_weights", [None, WEIGHTS])
@pytest.mark.parametrize("alpha", [0.0, 0.7, 0.9, 1.0])
def test_the_combined_loss_is_that_of_a_plain_loop(alpha: float, class_weights: list[float] | None) -> None:
    loss, _ = combined(made(class_weights, alpha=alpha), [slice(None)])
    assert float(loss) == pytest.approx(written_out(1 - alpha, class_weights), rel=1e-5)


@pytest.mark.parametrize(
    ("epoch", "warmup", "risen"),
    [(0.0, 0.0, 1.0), (0.0, 2.0, 0.0), (0.5, 2.0, 0.25), (1.0, 2.0, 0.5), (2.0, 2.0, 1.0), (7.0, 2.0, 1.0)],
)
def test_the_token_heads_share_rises_over_the_warm_up(epoch: float, warmup: float, risen: float) -> None:
    objective = made(alpha=0.6, token_loss_warmup_epochs=warmup)
    assert objective.denominators(LABELS, 11, epoch).token_share == pytest.approx(0.4 * risen)
    loss, _ = combined(objective, [slice(None)], epoch)
    assert float(loss) == pytest.approx(written_out(0.4 * risen, None), rel=1e-5)


@pytest.mark.parametrize("class_weights", [None, WEIGHTS])
@pytest.mark.parametrize("parts", [[slice(0, 1), slice(1, 5)], [slice(0, 2), slice(2, 4), slice(4, 5)]])
def test_parts_of_a_step_add_up_to_the_loss_and_gradients_of_the_whole(
    parts: list[slice], class_weights: list[float] | None
) -> None:
    """Also where a part has no labelled token at all."""
    objective = made(class_weights, alpha=0.7)
    (whole, gradients), (loss, found) = combined(objective, [slice(None)]), combined(objective, parts)
    torch.testing.assert_close(loss, whole)
    for gradient, expected in zip(found, gradients, strict=True):
        torch.testing.assert_close(gradient, expected)
        assert expected.abs().sum() > 0


def test_gradients_have_the_shares_of_alpha() -> None:
    only_task, only_tokens, both = (combined(made(alpha=alpha), [slice(None)])[1] for alpha in (1.0, 0.0, 0.7))
    torch.testing.assert_close(both[0], 0.7 * only_task[0])
    torch.testing.assert_close(both[1], 0.3 * only_tokens[1])
    assert not only_task[1].any()
    assert not only_tokens[0].any()


@pytest.mark.parametrize("labels_BT", [None, torch.full((5, 6), -1.0)], ids=["no labels", "none labelled"])
@pytest.mark.parametrize("epoch", [0.0, 3.0])
def test_a_step_without_a_labelled_token_is_the_plain_task_loss(labels_BT: torch.Tensor | None, epoch: float) -> None:
    objective, given, plain = made(WEIGHTS, alpha=0.7), output(), output(gate=False)
    denominators = objective.denominators(LABELS, 0, epoch)
    assert denominators == Denominators(sum(WEIGHTS[label] for label in LABELS), 0, 0.0)
    loss = denominators.combine(objective.sums(given, torch.from_numpy(LABELS), labels_BT))
    expected = objective.rows(plain.logits, torch.from_numpy(LABELS)).mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    assert torch.equal(given.logits.grad, plain.logits.grad)
    # Zero and not missing: several processes wait for a gradient of every weight.
    assert torch.equal(given.token_logits.grad, torch.zeros(5, 6, 2))


def test_sums_are_of_rows_and_tokens_and_count_hits() -> None:
    objective, given = made(alpha=0.7), output()
    target, tokens, hits = objective.sums(given, torch.from_numpy(LABELS), TOKEN_LABELS_BT).tolist()
    assert target / 5 == pytest.approx(written_out(0.0, None), rel=1e-5)
    assert tokens / 11 == pytest.approx(written_out(1.0, None), rel=1e-5)
    says_yes = given.token_logits[..., 1] > given.token_logits[..., 0]
    right = [bool(says_yes[row, t]) == (label >= 0.5) for (row, t), label in labelled()]
    assert hits == sum(right)
    assert 0 < hits < 11


def labelled() -> list[tuple[tuple[int, int], float]]:
    """Place and label of each labelled token."""
    return [((row, t), float(TOKEN_LABELS_BT[row, t])) for row, t in (TOKEN_LABELS_BT >= 0).nonzero().tolist()]


def test_without_a_token_gate_there_are_only_the_rows_losses() -> None:
    sums_3 = made(alpha=0.7).sums(output(gate=False), torch.from_numpy(LABELS), TOKEN_LABELS_BT)
    assert sums_3[0].item() / 5 == pytest.approx(written_out(0.0, None), rel=1e-5)
    assert sums_3[1:].tolist() == [0.0, 0.0]


def test_regression_has_a_token_heads_loss_too() -> None:
    objective, scores_B = made(space=LabelSpace("regression"), alpha=0.7), torch.from_numpy(LABELS.astype(np.float32))
    given = output(columns=1)
    sums_3 = objective.sums(given, scores_B, TOKEN_LABELS_BT)
    pairs = zip(given.logits[:, 0].tolist(), scores_B.tolist(), strict=True)
    errors = [(logit - score) ** 2 for logit, score in pairs]
    assert sums_3[0].item() == pytest.approx(sum(errors), rel=1e-5)
    loss = objective.denominators(LABELS.astype(np.float32), 11, 0.0).combine(sums_3)
    assert loss.item() == pytest.approx(0.7 * sum(errors) / 5 + 0.3 * sums_3[1].item() / 11, rel=1e-5)


def test_rows_whose_classes_all_weigh_nothing_do_not_divide_by_zero() -> None:
    assert made([0.0, 1.0, 1.0]).denominators(np.array([0, 0]), 0, 0.0).target == 1.0
