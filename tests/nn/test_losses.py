"""Row losses against PyTorch's own and against losses written out."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from attentune.config import ObjectiveConfig
from attentune.nn.classifiers import ScaledOutput, build_outputs, class_log_probabilities, raw_outputs
from attentune.nn.losses import (
    LOSSES,
    NO_LABEL,
    corn_rows,
    corn_task_counts,
    cross_entropy_rows,
    focal_rows,
    label_set_rows,
    pearson_rows,
    resolve_loss,
    row_losses,
    token_label_sums,
    with_token_loss,
)

WEIGHTS = {"none": None, "unequal": [0.2, 1.0, 3.5], "with zero": [0.0, 1.0, 2.0], "large": [100.0, 1.0, 1.0]}


def example(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return (3 * torch.randn(9, 3, generator=generator)).to(dtype), torch.tensor([0, 1, 2, 2, 1, 0, 0, 1, 2])


def weights_of(name: str) -> torch.Tensor | None:
    return None if WEIGHTS[name] is None else torch.tensor(WEIGHTS[name])


@pytest.mark.parametrize("gamma", [None, 0.0, 0.5, 2.0, 5.0])  # of the focal loss; None is the cross-entropy
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_each_row_is_the_loss_written_out(name: str, smoothing: float, gamma: float | None) -> None:
    logits_BC, labels_B = example()
    options = {"class_weights_C": weights_of(name), "label_smoothing": smoothing}
    if gamma is None:
        rows = cross_entropy_rows(logits_BC, labels_B, **options)
    else:
        rows = focal_rows(logits_BC, labels_B, gamma=gamma, **options)
    weights = WEIGHTS[name] or [1.0, 1.0, 1.0]
    for row, label in enumerate(labels_B.tolist()):
        p = shares_of(logits_BC[row])
        targets = [smoothing / 3 + (1 - smoothing) * (column == label) for column in range(3)]
        loss = math.fsum(weights[c] * targets[c] * (1 - p[c]) ** (gamma or 0.0) * -math.log(p[c]) for c in range(3))
        assert float(rows.loss_B[row]) == pytest.approx(loss, rel=1e-4, abs=1e-6)
        assert float(rows.weight_B[row]) == pytest.approx(weights[label])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_losses_of_great_logits_are_finite_and_so_are_their_gradients(gamma: float) -> None:
    logits_B2 = torch.tensor([[300.0, -300.0], [-1e4, 1e4], [0.0, 0.0], [20.0, 0.0]], requires_grad=True)
    classes_B, sets_BC = torch.tensor([0, 0, 1, 0]), torch.tensor([[1, 0], [1, 0], [0, 1], [1, 1]])
    for rows, worst in (
        (focal_rows(logits_B2, classes_B, gamma=gamma), 2e4),
        (label_set_rows(logits_B2, sets_BC, gamma=gamma), 1e4),
    ):
        assert rows.loss_B[:2].tolist() == [pytest.approx(0.0, abs=1e-6), worst]
        logits_B2.grad = None
        rows.mean().backward()
        assert logits_B2.grad.isfinite().all()


def shares_of(logits: torch.Tensor) -> list[float]:
    """The softmax, written out."""
    powers = [math.exp(float(score)) for score in logits]
    return [power / math.fsum(powers) for power in powers]


def test_softmax_cross_entropy_is_that_of_the_probabilities() -> None:
    logits_BC, labels_B = example()
    rows = row_losses("softmax-cross-entropy", logits_BC, labels_B)
    for row, label in enumerate(labels_B.tolist()):
        p = shares_of(logits_BC[row])
        loss = math.log(math.fsum(math.exp(value) for value in p)) - p[label]
        assert float(rows.loss_B[row]) == pytest.approx(loss, rel=1e-5)
    assert float(rows.loss_B.min()) > math.log(1 + 2 / math.e) - 1e-6


def test_every_loss_is_a_choice_and_works_by_its_name() -> None:
    choices = next(field for field in dataclasses.fields(ObjectiveConfig) if field.name == "loss").metadata["choices"]
    assert choices == ("auto", *LOSSES)
    logits_BC, labels_B = example()
    for name, kinds in LOSSES.items():
        columns = 1 if "regression" in kinds else 3
        labels = labels_B.float() if columns == 1 else labels_B
        if kinds == ("multi_label",):
            labels = F.one_hot(labels_B, 3)
        rows = row_losses(name, logits_BC[:, :columns], labels)
        assert rows.loss_B.shape == rows.weight_B.shape == (9,)
        assert rows.loss_B.isfinite().all()
    errors = row_losses("mse", logits_BC[:, :1], labels_B.float())
    torch.testing.assert_close(errors.loss_B, (logits_BC[:, 0] - labels_B) ** 2)
    assert float(errors.mean()) != float(row_losses("pearson", logits_BC[:, :1], labels_B.float()).mean())


def test_weights_and_smoothing_go_to_every_loss_of_classes() -> None:
    logits_BC, labels_B = example()
    logits_B2, labels_of_2_B = logits_BC[:, :2], labels_B.clamp(max=1)
    sets_BC = F.one_hot(labels_B, 3).roll(1, dims=0) | F.one_hot(labels_B, 3)
    three_C, two_C = torch.tensor([1.0, 3.0, 0.5]), torch.tensor([1.0, 4.0])
    options = {"label_smoothing": 0.2, "focal_gamma": 1.5}
    rows = row_losses("focal", logits_B2, labels_of_2_B, class_weights_C=two_C, **options)
    expected = focal_rows(logits_B2, labels_of_2_B, gamma=1.5, class_weights_C=two_C, label_smoothing=0.2)
    assert torch.equal(rows.loss_B, expected.loss_B)
    for name, gamma in (("binary-cross-entropy", 0.0), ("focal", 1.5)):
        rows = row_losses(name, logits_BC, sets_BC, class_weights_C=three_C, **options)
        of_sets = label_set_rows(logits_BC, sets_BC, gamma=gamma, class_weights_C=three_C, label_smoothing=0.2)
        assert torch.equal(rows.loss_B, of_sets.loss_B)
    assert torch.equal(
        row_losses("focal", logits_BC, labels_B).loss_B, focal_rows(logits_BC, labels_B, gamma=2.0).loss_B
    )


def test_auto_goes_by_the_task() -> None:
    found = {kind: resolve_loss("auto", kind) for kind in ("classification", "ordinal", "regression")}
    assert found == {"classification": "cross-entropy", "ordinal": "cross-entropy", "regression": "mse"}
    for loss, kind in (("mse", "classification"), ("cross-entropy", "regression"), ("corn", "ordinal")):
        assert resolve_loss(loss, kind) == loss


TOKEN_LABELS = {
    "hard": [[NO_LABEL, 0, 1, 0, NO_LABEL], [NO_LABEL, NO_LABEL, 0, NO_LABEL, NO_LABEL]],
    "soft": [[NO_LABEL, 0.25, 0.5, 0.49, 1.0], [0.0, NO_LABEL, 0.75, NO_LABEL, NO_LABEL]],
    "all": [[0, 1, 0, 1, 0], [1, 1, 1, 0, 0]],
}


def token_logits(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (2 * torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(12))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(TOKEN_LABELS))
def test_token_label_sums_are_those_of_a_plain_loop(name: str, dtype: torch.dtype) -> None:
    token_logits_BT2, labels_BT = token_logits(dtype), torch.tensor(TOKEN_LABELS[name], dtype=torch.float32)
    losses, hits = [], 0
    for row in range(2):
        for t in range(5):
            label, (no, yes) = float(labels_BT[row, t]), token_logits_BT2[row, t].tolist()
            if label < 0:
                continue
            log_total = math.log(math.exp(no) + math.exp(yes))
            losses.append(label * (log_total - yes) + (1 - label) * (log_total - no))
            hits += (yes > no) == (label >= 0.5)
    loss, found_hits = token_label_sums(token_logits_BT2, labels_BT)
    assert (loss.shape, loss.dtype, found_hits.dtype) == (torch.Size(()), torch.float32, torch.float32)
    assert float(loss) == pytest.approx(math.fsum(losses), rel=1e-5)
    assert float(found_hits) == hits
    assert 0 < hits < len(losses)


def test_a_rows_weight_multiplies_the_loss_of_its_tokens() -> None:
    labels_BT, weights_B = torch.tensor(TOKEN_LABELS["soft"]), torch.tensor([0.25, 3.0])
    weighed, hits = token_label_sums(token_logits(), labels_BT, weights_B)
    rows = [token_label_sums(token_logits()[row : row + 1], labels_BT[row : row + 1]) for row in range(2)]
    torch.testing.assert_close(weighed, 0.25 * rows[0][0] + 3.0 * rows[1][0])
    assert hits == rows[0][1] + rows[1][1]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_tasks_loss_and_the_token_heads_share_one_loss(share: float) -> None:
    labels_BT, loss = torch.tensor(TOKEN_LABELS["soft"]), torch.tensor(1.7)
    found = with_token_loss(loss, token_logits(), labels_BT, share=share)
    mean = float(token_label_sums(token_logits(), labels_BT)[0]) / 6
    assert float(found) == pytest.approx((1 - share) * 1.7 + share * mean, rel=1e-6)


def test_where_no_token_is_labelled_the_tasks_loss_is_whole_and_the_token_head_in_the_graph() -> None:
    token_logits_BT2, loss = token_logits().requires_grad_(), torch.tensor(1.7, dtype=torch.float64)
    found = with_token_loss(loss, token_logits_BT2, torch.full((2, 5), NO_LABEL), share=0.3)
    assert found.item() == 1.7
    found.backward()
    assert torch.equal(token_logits_BT2.grad, torch.zeros(2, 5, 2))
    one = torch.full((2, 5), NO_LABEL)
    one[0, 0] = 0.0
    expected = 0.7 * 1.7 + 0.3 * float(token_label_sums(token_logits(), one)[0])
    assert float(with_token_loss(loss, token_logits(), one, share=0.3)) == pytest.approx(expected, rel=1e-6)


def test_only_labelled_tokens_have_a_gradient() -> None:
    token_logits_BT2, labels_BT = token_logits().requires_grad_(), torch.tensor(TOKEN_LABELS["soft"])
    token_label_sums(token_logits_BT2, labels_BT)[0].backward()
    expected = token_logits_BT2.detach().softmax(dim=-1) - torch.stack([1 - labels_BT, labels_BT], dim=-1)
    expected[labels_BT < 0] = 0.0
    torch.testing.assert_close(token_logits_BT2.grad, expected)


def test_cross_entropy_with_soft_targets_is_that_of_a_plain_loop() -> None:
    logits_BC, targets_BC = torch.randn(6, 3) * 4, torch.rand(6, 3)
    targets_BC = targets_BC / targets_BC.sum(dim=1, keepdim=True)
    losses = row_losses("cross-entropy", logits_BC, targets_BC)
    for row in range(6):
        shares = zip(targets_BC[row].tolist(), shares_of(logits_BC[row]), strict=True)
        expected = -sum(target * math.log(share) for target, share in shares)
        assert losses.loss_B[row].item() == pytest.approx(expected, rel=1e-5)
    assert losses.weight_B.tolist() == [1.0] * 6


# Several labels a row


def label_sets() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return 3 * torch.randn(7, 4, generator=generator), torch.randint(0, 2, (7, 4), generator=generator)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, [0.2, 1.0, 3.5, 9.0]])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_each_row_of_labels_is_the_loss_written_out(gamma, weights, smoothing):
    logits_BC, labels_BC = label_sets()
    weights_C = None if weights is None else torch.tensor(weights)
    rows = label_set_rows(logits_BC, labels_BC, gamma=gamma, class_weights_C=weights_C, label_smoothing=smoothing)
    for row in range(7):
        loss = 0.0
        for column in range(4):
            p = 1 / (1 + math.exp(-float(logits_BC[row, column])))
            target = int(labels_BC[row, column]) * (1 - smoothing) + smoothing / 2
            weight = 1.0 if weights is None else weights[column]
            loss += weight * target * (1 - p) ** gamma * -math.log(p)
            loss += (1 - target) * p**gamma * -math.log(1 - p)
        assert float(rows.loss_B[row]) == pytest.approx(loss / 4, rel=1e-4, abs=1e-6)
    assert rows.weight_B.tolist() == [1.0] * 7


# CORN against the paper's formula, written out task by task


def corn_batch(rows: int = 40, classes: int = 5, *, spread: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """What the last linear gives, and classes; all of them occur."""
    generator = torch.Generator().manual_seed(classes)
    labels_B = torch.arange(rows) % classes
    return spread * torch.randn(rows, classes - 1, generator=generator), labels_B[
        torch.randperm(rows, generator=generator)
    ]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def papers_loss(conditional: list[list[float]], labels: list[int], classes: int) -> float:
    """Subset by subset: task k trains on the rows whose class is at least k, and asks whether it is above k."""
    total, examples = 0.0, 0
    for k in range(classes - 1):
        for row, label in zip(conditional, labels, strict=True):
            if label < k:
                continue
            examples += 1
            total -= math.log(sigmoid(row[k])) if label > k else math.log(1 - sigmoid(row[k]))
    return total / examples


@pytest.mark.parametrize("classes", [2, 3, 5, 9])
def test_the_mean_loss_is_that_of_the_papers_subsets(classes: int) -> None:
    conditional_BK, labels_B = corn_batch(classes=classes)
    found = corn_rows(class_log_probabilities(conditional_BK), labels_B)
    expected = papers_loss(conditional_BK.tolist(), labels_B.tolist(), classes)
    assert float(found.mean()) == pytest.approx(expected, rel=1e-5)
    assert found.weight_B.tolist() == [min(label + 1, classes - 1) for label in labels_B.tolist()]
    assert torch.equal(found.weight_B, corn_task_counts(labels_B, classes))


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_softmax_of_the_logits_is_the_chain_of_conditional_probabilities(classes: int) -> None:
    conditional_BK, _ = corn_batch(8, classes)
    probabilities_BC = class_log_probabilities(conditional_BK).softmax(dim=1)
    for row, found in zip(conditional_BK.tolist(), probabilities_BC.tolist(), strict=True):
        above = [math.prod(sigmoid(z) for z in row[:k]) for k in range(classes)]  # p(y >= k)
        expected = [above[k] - (above[k + 1] if k + 1 < classes else 0.0) for k in range(classes)]
        assert found == pytest.approx(expected, abs=1e-6)
        assert math.fsum(found) == pytest.approx(1.0, abs=1e-6)


def test_only_a_rows_own_tasks_have_a_gradient() -> None:
    conditional_BK, labels_B = corn_batch()
    conditional_BK.requires_grad_()
    corn_rows(class_log_probabilities(conditional_BK), labels_B).loss_B.sum().backward()
    for row, label in enumerate(labels_B.tolist()):
        for k in range(4):
            wanted = sigmoid(float(conditional_BK[row, k])) - (label > k) if label >= k else 0.0
            assert float(conditional_BK.grad[row, k]) == pytest.approx(wanted, abs=1e-6)


def test_great_numbers_stay_finite_and_bf16_is_computed_in_float32() -> None:
    conditional_BK = torch.tensor([[500.0, -500.0, 30.0], [-1e4, 1e4, 0.0]], requires_grad=True)
    logits_BC = class_log_probabilities(conditional_BK)
    corn_rows(logits_BC, torch.tensor([0, 3])).mean().backward()
    assert logits_BC.isfinite().all()
    assert conditional_BK.grad.isfinite().all()
    half_BK = corn_batch()[0].bfloat16()
    assert class_log_probabilities(half_BK).dtype == torch.float32
    assert torch.equal(class_log_probabilities(half_BK), class_log_probabilities(half_BK.float()))


# Minus the correlation of a batch, against a plain loop; and the scale that it leaves free


def pearson_batch(rows: int, *, seed: int = 0, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions that have to do with the labels, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels_B = 5 * torch.rand(rows, generator=generator)
    noise_B = torch.randn(rows, generator=generator)
    return (scale * (0.3 * labels_B + noise_B))[:, None], labels_B


def plain_correlation(one: list[float], other: list[float]) -> float:
    """Written out, in double precision."""
    mean_1, mean_2 = math.fsum(one) / len(one), math.fsum(other) / len(other)
    together = math.fsum((a - mean_1) * (b - mean_2) for a, b in zip(one, other, strict=True))
    square_1 = math.fsum((a - mean_1) ** 2 for a in one)
    square_2 = math.fsum((b - mean_2) ** 2 for b in other)
    return together / math.sqrt(square_1 * square_2)


@pytest.mark.parametrize("rows", [2, 3, 8, 33])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_each_row_has_minus_the_correlation_of_the_batch(rows: int, scale: float) -> None:
    logits_B1, labels_B = pearson_batch(rows, scale=scale)
    found = pearson_rows(logits_B1, labels_B.double())
    expected = plain_correlation(logits_B1[:, 0].tolist(), labels_B.tolist())
    assert (found.loss_B.dtype, found.loss_B.shape) == (torch.float32, (rows,))
    assert found.loss_B.tolist() == pytest.approx([-expected] * rows, abs=2e-6)
    assert found.weight_B.tolist() == [1.0] * rows
    assert expected == pytest.approx(stats.pearsonr(logits_B1[:, 0], labels_B).statistic, abs=1e-5)


@pytest.mark.parametrize("rows", [2, 3, 9])
def test_the_gradient_is_that_of_the_plain_formula(rows: int) -> None:
    """By central differences in double precision, and by the derivative of the formula."""
    logits_B1, labels_B = pearson_batch(rows, seed=3)
    logits_B1.requires_grad_()
    pearson_rows(logits_B1, labels_B).mean().backward()
    values, labels = logits_B1[:, 0].tolist(), labels_B.tolist()
    for row in range(rows):
        above, below = ([v + step * (n == row) for n, v in enumerate(values)] for step in (1e-5, -1e-5))
        slope = (plain_correlation(above, labels) - plain_correlation(below, labels)) / 2e-5
        assert float(logits_B1.grad[row, 0]) == pytest.approx(-slope, abs=2e-5)
    assert rows == 2 or logits_B1.grad.abs().max() > 0.01


NOTHING_TO_LEARN = {
    "one row": ([[0.7]], [3.0]),
    "constant labels": ([[0.1], [0.5], [-2.0]], [2.0, 2.0, 2.0]),
    "constant predictions": ([[0.1], [0.1], [0.1]], [1.0, 2.0, 5.0]),
    "zeros": ([[0.0], [0.0]], [1.0, 2.0]),
    "all constant": ([[4.0], [4.0]], [1.0, 1.0]),
    "predictions that differ by rounding": ([[1.0], [1.0 + 2**-23], [1.0]], [1.0, 2.0, 5.0]),
    "predictions below any use": ([[1e-30], [2e-30], [0.0]], [1.0, 2.0, 5.0]),
    "labels that differ by rounding": ([[0.1], [0.5], [-2.0]], [0.1 + 0.2, 0.3, 0.3]),
}


@pytest.mark.parametrize("name", NOTHING_TO_LEARN)
def test_where_there_is_no_correlation_loss_and_gradient_are_zero(name: str) -> None:
    values, labels = NOTHING_TO_LEARN[name]
    logits_B1 = torch.tensor(values, requires_grad=True)
    found = pearson_rows(logits_B1, torch.tensor(labels, dtype=torch.float64))
    assert found.loss_B.abs().tolist() == [0.0] * len(labels)
    found.loss_B.sum().backward()
    assert torch.equal(logits_B1.grad, torch.zeros_like(logits_B1))


def test_labels_of_any_size_are_labels_and_bf16_predictions_are_correlated_in_float32() -> None:
    logits_B1, labels_B = pearson_batch(40)
    expected = pearson_rows(logits_B1, labels_B).loss_B
    for factor in (1e-20, 1e20):
        torch.testing.assert_close(pearson_rows(logits_B1, factor * labels_B).loss_B, expected)
    half_B1 = logits_B1.bfloat16()
    torch.testing.assert_close(pearson_rows(half_B1, labels_B).loss_B, pearson_rows(half_B1.float(), labels_B).loss_B)


# Scale and offset


def test_only_pearson_has_a_scale_of_its_own() -> None:
    assert isinstance(build_outputs("pearson"), ScaledOutput)
    assert [build_outputs(name) for name in ("auto", "cross-entropy", "binary-cross-entropy", "mse")] == [None] * 4
    assert (raw_outputs("pearson", 1), raw_outputs("cross-entropy", 5), raw_outputs("corn", 5)) == (1, 5, 4)


def test_the_fitted_line_is_numpys_and_a_second_fit_changes_nothing() -> None:
    raw_N1, labels_N = pearson_batch(50, scale=0.01)
    outputs = ScaledOutput()
    assert torch.equal(outputs(raw_N1), raw_N1)
    assert outputs.fit(outputs(raw_N1)[:, 0], labels_N)
    slope, intercept = np.polyfit(raw_N1[:, 0].double(), labels_N.double(), 1)
    assert outputs.scale.tolist() == pytest.approx([slope], rel=1e-5)
    assert outputs.offset.tolist() == pytest.approx([intercept], rel=1e-5)
    torch.testing.assert_close(outputs(raw_N1)[:, 0].mean(), labels_N.mean())
    once = outputs(raw_N1)
    assert outputs.fit(once[:, 0], labels_N)
    torch.testing.assert_close(outputs(raw_N1), once)
    assert outputs.fit(once[:, 0], 3 * labels_N + 1)
    torch.testing.assert_close(outputs(raw_N1), 3 * once + 1)
    outputs.reset_parameters()
    assert torch.equal(outputs(raw_N1), raw_N1)


@pytest.mark.parametrize("turned", ["falling", "constant"])
def test_predictions_that_do_not_rise_with_the_labels_keep_their_scale(turned: str) -> None:
    raw_N1, labels_N = pearson_batch(50)
    outputs = ScaledOutput()
    assert not outputs.fit(-raw_N1[:, 0] if turned == "falling" else torch.ones(50), labels_N)
    assert (outputs.scale.tolist(), outputs.offset.tolist()) == ([1.0], [0.0])
