"""What training minimises: class weights from every spelling, and a denominator known before the forward pass."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from attentune.config import ObjectiveConfig
from attentune.data.rows import LabelSpace
from attentune.errors import ConfigError
from attentune.training.objective import Objective, build_objective

THREE = LabelSpace("classification", ("bad", "fair", "good"))
SCORE = LabelSpace("regression")
LABELS = np.array([0, 0, 0, 0, 1, 1, 2])


def made(
    class_weights: object = None, *, space: LabelSpace = THREE, labels: np.ndarray = LABELS, **options
) -> Objective:
    return build_objective(ObjectiveConfig(class_weights=class_weights, **options), space, labels)


def test_balanced_is_scikit_learns_rule() -> None:
    weights_C = made("balanced").class_weights
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS)
    np.testing.assert_allclose(weights_C.numpy(), expected, rtol=1e-6)
    assert weights_C.dtype == torch.float32


def test_balanced_gives_a_class_without_rows_no_weight() -> None:
    weights_C = made("balanced", labels=np.array([0, 0, 2])).class_weights
    assert weights_C.tolist() == pytest.approx([3 / (3 * 2), 0.0, 3 / (3 * 1)])


@pytest.mark.parametrize(
    "spelling",
    [
        [0.5, 1, 2],
        (0.5, 1, 2),
        ["0.5", "1", "2"],
        "0.5,1,2",
        " 0.5, 1 ,2.0",
        {"bad": 0.5, "fair": 1, "good": 2},
        {"good": "2", "bad": 0.5, "fair": 1},
    ],
)
def test_weights_in_every_spelling(spelling: object) -> None:
    assert made(spelling).class_weights.tolist() == [0.5, 1.0, 2.0]


def test_names_that_yaml_reads_as_numbers_are_names() -> None:
    space = LabelSpace("ordinal", ("1", "2"))
    assert made({2: 3.0, 1: 0.5}, space=space, labels=np.array([0, 1])).class_weights.tolist() == [0.5, 3.0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, 2], "expected balanced, or 3 numbers of at least 0, one for each of bad, fair, good"),
        ([1, 2, 3, 4], "expected balanced, or 3 numbers"),
        ([1, -1, 1], "expected balanced, or 3 numbers"),
        ([0, 0, 0], "expected balanced, or 3 numbers"),
        ([1, float("nan"), 1], "expected balanced, or 3 numbers"),
        ([1, float("inf"), 1], "expected balanced, or 3 numbers"),
        ([1, None, 1], "expected balanced, or 3 numbers"),
        ([1, "x", 1], "expected balanced, or 3 numbers"),
        ("balance", "expected balanced, or 3 numbers"),
        ("1,2", "expected balanced, or 3 numbers"),
        (3, "expected balanced, or 3 numbers"),
        (True, "expected balanced, or 3 numbers"),
        ({"bad": 1, "good": 2}, "got ['bad', 'good'], expected ['bad', 'fair', 'good']"),
        ({"bad": 1, "fair": 1, "great": 2}, "got ['bad', 'fair', 'great'], expected"),
        ({"bad": 1, "fair": 1, "good": None}, "expected balanced, or 3 numbers"),
    ],
)
def test_weights_that_do_not_fit_are_refused(wrong: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(wrong)
    assert str(caught.value).startswith("objective.class_weights: got ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("space", "loss", "expected"),
    [
        (THREE, "auto", "cross-entropy"),
        (THREE, "cross-entropy", "cross-entropy"),
        (LabelSpace("ordinal", ("1", "2", "3")), "auto", "cross-entropy"),
        (SCORE, "auto", "mse"),
        (SCORE, "mse", "mse"),
    ],
)
def test_the_loss_goes_by_the_task(space: LabelSpace, loss: str, expected: str) -> None:
    assert made(space=space, loss=loss).loss == expected


@pytest.mark.parametrize(("space", "loss"), [(THREE, "mse"), (SCORE, "cross-entropy")])
def test_a_loss_that_does_not_fit_the_task_is_refused(space: LabelSpace, loss: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"objective\.loss: got '{loss}', which does not fit a {space.task_type} task"
    ):
        made(space=space, loss=loss)


@pytest.mark.parametrize("options", [{"class_weights": "balanced"}, {"label_smoothing": 0.1}])
def test_weights_and_smoothing_need_classes(options: dict) -> None:
    with pytest.raises(ConfigError, match="class_weights and label_smoothing need classes; this task is a regression"):
        made(space=SCORE, labels=np.array([1.0, 2.0]), **options)


@pytest.mark.parametrize("class_weights", [None, "balanced", [0.1, 1.7, 0.0]])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_the_weight_sum_is_what_the_rows_add_up_to(class_weights: object, label_smoothing: float) -> None:
    objective = made(class_weights, label_smoothing=label_smoothing)
    logits_BC = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    rows = objective.rows(logits_BC, torch.from_numpy(LABELS))
    assert objective.weight_sum(LABELS) == pytest.approx(float(rows.weight_B.sum()), rel=1e-6)
    expected = torch.nn.functional.cross_entropy(
        logits_BC, torch.from_numpy(LABELS), weight=objective.class_weights, label_smoothing=label_smoothing
    )
    assert float(rows.loss_B.sum()) / objective.weight_sum(LABELS) == pytest.approx(float(expected), rel=1e-5)


def test_regression_weighs_every_row_alike() -> None:
    objective, scores = made(space=SCORE), np.array([1.0, 2.0, 4.0])
    assert objective.weight_sum(scores) == 3.0
    rows = objective.rows(torch.tensor([[1.0], [3.0], [1.0]]), torch.from_numpy(scores))
    assert rows.loss_B.tolist() == [0.0, 1.0, 9.0]
