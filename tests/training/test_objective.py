"""What training minimises: class weights from every spelling, and a denominator known before the forward pass."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError
from attentune.metrics.metrics import METRICS
from attentune.nn.classifiers import class_log_probabilities
from attentune.training.objective import Objective, build_objective, check_metric
from attentune.training.prepare import with_ordinal_prediction

THREE = LabelSpace("classification", ("bad", "fair", "good"))
SCORE = LabelSpace("regression")
STARS = LabelSpace("ordinal", ("1", "2", "3", "4", "5"))
LABELS = np.array([0, 0, 0, 0, 1, 1, 2])


def made(
    class_weights: object = None, *, space: LabelSpace = THREE, labels: np.ndarray = LABELS, **options
) -> Objective:
    return build_objective(space, labels, class_weights=class_weights, **options)


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
        (SCORE, "pearson", "pearson"),
        (STARS, "corn", "corn"),
        (LabelSpace("ordinal", ("low", "high")), "binary-cross-entropy", "binary-cross-entropy"),
        (LabelSpace("classification", ("bad", "good")), "binary-cross-entropy", "binary-cross-entropy"),
    ],
)
def test_the_loss_goes_by_the_task(space: LabelSpace, loss: str, expected: str) -> None:
    assert made(space=space, loss=loss).loss == expected


@pytest.mark.parametrize(
    ("space", "loss"),
    [
        *((space, loss) for space in (THREE, STARS) for loss in ("mse", "pearson")),
        *((SCORE, loss) for loss in ("cross-entropy", "binary-cross-entropy", "focal", "corn")),
        (THREE, "corn"),
    ],
)
def test_a_loss_that_does_not_fit_the_task_is_refused(space: LabelSpace, loss: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"objective\.loss: got '{loss}', which does not fit an? {space.task_type} task; expected auto",
    ) as caught:
        made(space=space, loss=loss)
    for name in str(caught.value).split("one of ")[1].split(" (")[0].rstrip(".").split(", "):
        if name not in ("binary-cross-entropy", "corn"):  # these want more than a kind of task
            assert made(space=space, loss=name).loss == name
    assert ("data.task_type ordinal" in str(caught.value)) == (loss == "corn")


@pytest.mark.parametrize(
    ("loss", "names", "wanted"),
    [
        ("binary-cross-entropy", ("a",), "needs two classes, but this task has 1 (a)"),
        ("binary-cross-entropy", ("a", "b", "c"), "needs two classes, but this task has 3 (a, b, c)"),
        ("corn", ("a",), "needs at least two classes, but this task has 1 (a)"),
    ],
)
def test_a_loss_that_wants_another_number_of_classes_says_so(loss: str, names: tuple, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(space=LabelSpace("ordinal", names), loss=loss, labels=np.zeros(4, dtype=np.int64))
    assert str(caught.value) == f"objective.loss: {loss} {wanted}. Use cross-entropy."


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


def test_corns_weight_sum_counts_the_rows_of_its_tasks() -> None:
    labels = np.array([0, 0, 1, 2, 3, 4, 4])
    objective = made(space=STARS, labels=labels, loss="corn")
    assert objective.weight_sum(labels) == 1 + 1 + 2 + 3 + 4 + 4 + 4
    conditional_BK = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    rows = objective.rows(class_log_probabilities(conditional_BK), torch.from_numpy(labels))
    assert float(rows.weight_B.sum()) == objective.weight_sum(labels)
    whole = rows.loss_B.sum() / objective.denominators(labels, 0, 0.0).target
    torch.testing.assert_close(whole, rows.mean())


def test_correlations_weigh_every_row_alike_so_batches_count_by_their_rows() -> None:
    scores = np.array([1.0, 2.0, 4.0, 4.0, 2.5], dtype=np.float32)
    objective = made(space=SCORE, labels=scores, loss="pearson")
    logits_B1 = torch.tensor([[1.0], [3.0], [1.0], [2.0], [0.5]])
    denominators = objective.denominators(scores, 0, 0.0)
    assert denominators.target == 5.0
    step, parts = torch.zeros(()), (slice(0, 3), slice(3, 5))
    for part in parts:
        output = SimpleNamespace(logits=logits_B1[part], token_logits=None)
        step = step + denominators.combine(objective.sums(output, torch.from_numpy(scores[part]), None))
    expected = [np.corrcoef(logits_B1[part, 0], scores[part])[0, 1] for part in parts]
    assert float(step) == pytest.approx(-(3 * expected[0] + 2 * expected[1]) / 5, abs=1e-6)


def test_the_expected_value_is_for_classes_with_an_order() -> None:
    assert with_ordinal_prediction(STARS, "expected-value") == replace(STARS, ordinal_prediction="expected-value")
    for space in (THREE, SCORE, STARS):
        assert with_ordinal_prediction(space, "argmax") == space
    for space in (THREE, SCORE):
        with pytest.raises(
            ConfigError, match="objective.ordinal_prediction: got 'expected-value', which needs"
        ) as caught:
            with_ordinal_prediction(space, "expected-value")
        assert f"this is a {space.task_type} task" in str(caught.value)


@pytest.mark.parametrize("name", sorted(name for name, metric in METRICS.items() if metric.needs == "an order"))
def test_errors_cannot_choose_among_weights_whose_predictions_have_no_scale(name: str) -> None:
    scores = np.array([1.0, 2.0])
    check_metric(made(space=SCORE, labels=scores), METRICS[name])
    pearson = made(space=SCORE, labels=scores, loss="pearson")
    if name in ("mean_absolute_error", "mean_squared_error"):
        with pytest.raises(ConfigError, match=f"training.metric_for_best_model: got '{name}', but objective.loss"):
            check_metric(pearson, METRICS[name])
    else:
        check_metric(pearson, METRICS[name])


def test_regression_weighs_every_row_alike() -> None:
    objective, scores = made(space=SCORE), np.array([1.0, 2.0, 4.0])
    assert objective.weight_sum(scores) == 3.0
    rows = objective.rows(torch.tensor([[1.0], [3.0], [1.0]]), torch.from_numpy(scores))
    assert rows.loss_B.tolist() == [0.0, 1.0, 9.0]


def test_balanced_label_sets_weigh_presence_against_absence() -> None:
    space = LabelSpace("multi_label", ("a", "b", "c"))
    labels = np.array([[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]])
    objective = made("balanced", space=space, labels=labels)
    # As many without as with: 3 of 1; never there; always there.
    assert objective.class_weights.tolist() == [3.0, 4.0, 0.25]
    assert (objective.loss, objective.weight_sum(labels)) == ("binary-cross-entropy", 4.0)
    logits_BC = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        logits_BC, torch.from_numpy(labels).float(), pos_weight=objective.class_weights
    )
    rows = objective.rows(logits_BC, torch.from_numpy(labels))
    torch.testing.assert_close(rows.loss_B.sum() / objective.weight_sum(labels), expected)
