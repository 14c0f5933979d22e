"""What training minimises: the task's loss and the token head's as one, weights of classes and of rows, soft targets.

The losses of single rows and tokens are tested in `tests/nn/test_losses.py`; here they are put together.
"""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from attentune.config import ObjectiveConfig
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError
from attentune.metrics.metrics import METRICS
from attentune.training.objective import Denominators, Objective, build_objective, check_metric
from attentune.training.prepare import check_objective, with_ordinal_prediction

THREE = LabelSpace("classification", ("bad", "fair", "good"))
SCORE = LabelSpace("regression")
STARS = LabelSpace("ordinal", ("1", "2", "3"))
CLASS_WEIGHTS, ROW_WEIGHTS = [0.5, 1.0, 4.0], np.array([1.0, 0.5, 0.25, 3.0, 1.0, 0.5])
LABELS = np.array([0, 2, 1, 0, 2, 1])
SCORES = np.array([0.0, 2.5, 1, 0, -2, 1], dtype=np.float32)
SETS = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]])
SHARES = np.random.default_rng(2).dirichlet(np.ones(3), 6).astype(np.float32)
# Rows with hard labels, with soft ones, with none, labelled throughout, and with a single one.
TOKEN_LABELS_BT = torch.tensor(
    [[1, 0, -1, -1], [-1, 0.25, 0.5, 0.75], [-1, -1, -1, -1], [0, 1, 1, 0], [-1, -1, -1, 1], [-1, -1, -1, -1]]
)
TOKENS = int((TOKEN_LABELS_BT >= 0).sum())
LABELLED = [(row, t, float(TOKEN_LABELS_BT[row, t])) for row, t in (TOKEN_LABELS_BT >= 0).nonzero().tolist()]
WHOLE = [slice(None)]


def made(
    class_weights: object = None,
    *,
    space: LabelSpace = THREE,
    labels: np.ndarray = LABELS,
    row_weights: np.ndarray | None = None,
    soft_targets: bool = False,
    **options: Any,
) -> Objective:
    settings = ObjectiveConfig(class_weights=class_weights, **options)
    return build_objective(settings, space, labels, row_weights=row_weights, soft_targets=soft_targets)


def output(rows: slice = slice(None), *, columns: int = 3, gate: bool = True) -> SimpleNamespace:
    """What a model would give for these rows, as leaves of the graph."""
    generator = torch.Generator().manual_seed(21)
    logits, tokens = (torch.randn(*shape, generator=generator) for shape in ((6, columns), (6, 4, 2)))
    if columns == 3:
        logits = logits.log_softmax(dim=-1)  # what corn takes; any other loss takes it too
    return SimpleNamespace(
        logits=logits[rows].requires_grad_(), token_logits=tokens[rows].requires_grad_() if gate else None
    )


def combined(
    objective: Objective,
    parts: list[slice] = WHOLE,
    *,
    labels: np.ndarray = LABELS,
    weights: np.ndarray | None = None,
    epoch: float = 0.0,
) -> tuple[float, list[torch.Tensor]]:
    """The loss of all rows as one optimiser step in these batches, and the gradients put together again."""
    denominators, total, gradients = objective.denominators(labels, TOKENS, epoch), 0.0, []
    for part in parts:
        given = output(part, columns=1 if objective.loss in ("mse", "pearson") else 3)
        weights_B = None if weights is None else torch.from_numpy(weights[part].astype(np.float32))
        sums_3 = objective.sums(given, torch.from_numpy(labels)[part], TOKEN_LABELS_BT[part], weights_B)
        loss = denominators.combine(sums_3)
        loss.backward()
        total += loss.item()
        gradients.append((given.logits.grad, given.token_logits.grad))
    return total, [torch.cat(parts) for parts in zip(*gradients, strict=True)]


def written_out(
    objective: Objective, share: float, labels: np.ndarray = LABELS, weights: np.ndarray | None = None
) -> float:
    """(1 - share) sum(w l) / sum(c) + share sum(w t) / tokens, each row's l and c from this row's loss alone."""
    given = output(columns=1 if objective.loss == "mse" else 3)
    weight_of = [1.0] * 6 if weights is None else weights.tolist()
    rows = [objective.rows(given.logits[row : row + 1], torch.from_numpy(labels[row : row + 1])) for row in range(6)]
    above = math.fsum(weight * float(one.loss_B.detach()) for weight, one in zip(weight_of, rows, strict=True))
    tokens = []
    for row, t, label in LABELLED:
        no, yes = given.token_logits[row, t].tolist()
        total = math.log(math.exp(no) + math.exp(yes))
        tokens.append(weight_of[row] * (-label * (yes - total) - (1 - label) * (no - total)))
    below = math.fsum(float(one.weight_B) for one in rows)
    return (1 - share) * above / below + share * math.fsum(tokens) / TOKENS


# The combined loss

CASES: list[tuple[LabelSpace, np.ndarray, dict[str, Any]]] = [
    (THREE, LABELS, {}),
    (THREE, LABELS, {"class_weights": CLASS_WEIGHTS, "label_smoothing": 0.1}),
    (THREE, LABELS, {"loss": "focal", "class_weights": CLASS_WEIGHTS}),
    (STARS, LABELS, {"loss": "corn"}),
    (SCORE, SCORES, {}),
    (LabelSpace("multi_label", ("a", "b", "c")), SETS, {}),
    (LabelSpace("multi_label", ("a", "b", "c")), SETS, {"loss": "focal", "class_weights": [2.0, 1.0, 3.0]}),
    (THREE, SHARES, {"soft_targets": True}),
    (STARS, SHARES, {"soft_targets": True}),
    (LabelSpace("multi_label", ("a", "b", "c")), SHARES, {"soft_targets": True}),
    (SCORE, SHARES[:, 0], {"soft_targets": True}),
]
every_case = pytest.mark.parametrize(
    ("space", "labels", "options"), CASES, ids=lambda value: getattr(value, "task_type", "")
)


@every_case
@pytest.mark.parametrize("weights", [None, ROW_WEIGHTS], ids=["", "weighted"])
@pytest.mark.parametrize("parts", [WHOLE, [slice(0, 1), slice(1, 2), slice(2, 6)]], ids=["whole", "parts"])
def test_the_loss_of_a_step_is_that_of_a_plain_loop(space, labels, options, weights, parts):
    """In one batch, in batches of one step, and as the shares of several processes."""
    for alpha in (0.0, 0.7, 1.0):
        objective = made(space=space, labels=labels, row_weights=weights, alpha=alpha, **options)
        loss, _ = combined(objective, parts, labels=labels, weights=weights)
        assert loss == pytest.approx(written_out(objective, 1 - alpha, labels, weights), rel=1e-5)


@pytest.mark.parametrize(
    ("epoch", "warmup", "risen"),
    [(0.0, 0.0, 1.0), (0.0, 2.0, 0.0), (0.5, 2.0, 0.25), (1.0, 2.0, 0.5), (2.0, 2.0, 1.0), (7.0, 2.0, 1.0)],
)
def test_the_token_heads_share_rises_over_the_warm_up(epoch: float, warmup: float, risen: float) -> None:
    objective = made(alpha=0.6, token_loss_warmup_epochs=warmup)
    assert objective.denominators(LABELS, TOKENS, epoch).token_share == pytest.approx(0.4 * risen)
    assert combined(objective, epoch=epoch)[0] == pytest.approx(written_out(objective, 0.4 * risen), rel=1e-5)


@pytest.mark.parametrize("class_weights", [None, CLASS_WEIGHTS])
def test_parts_of_a_step_add_up_to_the_gradients_of_the_whole_which_have_the_shares_of_alpha(class_weights):
    """Also where a part has no labelled token at all."""
    only_task, only_tokens, both = (combined(made(class_weights, alpha=alpha))[1] for alpha in (1.0, 0.0, 0.7))
    torch.testing.assert_close(both, [0.7 * only_task[0], 0.3 * only_tokens[1]])
    assert not only_task[1].any()
    assert not only_tokens[0].any()
    _, found = combined(made(class_weights, alpha=0.7), [slice(0, 2), slice(2, 3), slice(3, 6)])
    torch.testing.assert_close(found, both)


@pytest.mark.parametrize("labels_BT", [None, torch.full((6, 4), -1.0)], ids=["no labels", "none labelled"])
def test_a_step_without_a_labelled_token_is_the_plain_task_loss(labels_BT: torch.Tensor | None) -> None:
    objective, given, plain = made(CLASS_WEIGHTS, alpha=0.7), output(), output(gate=False)
    denominators = objective.denominators(LABELS, 0, 3.0)
    assert denominators == Denominators(sum(CLASS_WEIGHTS[label] for label in LABELS), 0, 0.0)
    loss = denominators.combine(objective.sums(given, torch.from_numpy(LABELS), labels_BT))
    expected = objective.rows(plain.logits, torch.from_numpy(LABELS)).mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    assert torch.equal(given.logits.grad, plain.logits.grad)
    # Zero and not missing: several processes wait for a gradient of every weight.
    assert torch.equal(given.token_logits.grad, torch.zeros(6, 4, 2))


def test_sums_are_of_rows_and_tokens_and_count_hits() -> None:
    objective, given = made(alpha=0.7), output()
    target, tokens, hits = objective.sums(given, torch.from_numpy(LABELS), TOKEN_LABELS_BT).tolist()
    assert target / 6 == pytest.approx(written_out(objective, 0.0), rel=1e-5)
    assert tokens / TOKENS == pytest.approx(written_out(objective, 1.0), rel=1e-5)
    says_yes = given.token_logits[..., 1] > given.token_logits[..., 0]
    assert hits == sum(bool(says_yes[row, t]) == (label >= 0.5) for row, t, label in LABELLED)
    assert 0 < hits < TOKENS
    without = objective.sums(output(gate=False), torch.from_numpy(LABELS), TOKEN_LABELS_BT)
    assert without.tolist() == [target, 0.0, 0.0]


# Denominators


@pytest.mark.parametrize("class_weights", [None, "balanced", [0.1, 1.7, 0.0]])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_the_weight_sum_is_what_the_rows_add_up_to(class_weights: object, label_smoothing: float) -> None:
    objective = made(class_weights, label_smoothing=label_smoothing)
    logits_BC, labels_B = output().logits.detach(), torch.from_numpy(LABELS)
    rows = objective.rows(logits_BC, labels_B)
    assert objective.weight_sum(LABELS) == pytest.approx(float(rows.weight_B.sum()), rel=1e-6)
    options = {"weight": objective.class_weights, "label_smoothing": label_smoothing}
    expected = torch.nn.functional.cross_entropy(logits_BC, labels_B, **options)
    assert float(rows.loss_B.sum()) / objective.weight_sum(LABELS) == pytest.approx(float(expected), rel=1e-5)


def test_corns_weight_sum_counts_the_rows_of_its_tasks() -> None:
    assert made(space=STARS, loss="corn").weight_sum(LABELS) == 1 + 2 + 2 + 1 + 2 + 2


def test_correlations_weigh_every_row_alike_so_batches_count_by_their_rows() -> None:
    objective, logits_N = made(space=SCORE, labels=SCORES, loss="pearson"), output(columns=1).logits[:, 0].tolist()
    parts = (slice(0, 4), slice(4, 6))
    expected = [np.corrcoef(logits_N[part], SCORES[part])[0, 1] for part in parts]
    denominators = objective.denominators(SCORES, 0, 0.0)
    assert denominators.target == 6.0
    found = [
        denominators.combine(objective.sums(output(part, columns=1), torch.from_numpy(SCORES[part]), None)).item()
        for part in parts
    ]
    assert sum(found) == pytest.approx(-(4 * expected[0] + 2 * expected[1]) / 6, abs=1e-6)
    with pytest.raises(ConfigError, match="pearson has one loss for a whole batch, so rows cannot have weights"):
        made(space=SCORE, labels=SCORES, row_weights=ROW_WEIGHTS, loss="pearson")


def test_rows_whose_classes_all_weigh_nothing_do_not_divide_by_zero() -> None:
    assert made([0.0, 1.0, 1.0]).denominators(np.array([0, 0]), 0, 0.0).target == 1.0


# Weights of classes


def test_balanced_is_scikit_learns_rule_by_what_the_rows_weigh() -> None:
    weights_C = made("balanced", labels=LABELS[:4]).class_weights
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS[:4])
    np.testing.assert_allclose(weights_C.numpy(), expected, rtol=1e-6)
    assert weights_C.dtype == torch.float32
    weights_C = made("balanced", labels=np.array([0, 0, 2])).class_weights
    assert weights_C.tolist() == pytest.approx([3 / (3 * 2), 0.0, 3 / (3 * 1)]), "a class without rows weighs nothing"
    found = made("balanced", row_weights=ROW_WEIGHTS).class_weights.numpy()
    weighed = np.array([ROW_WEIGHTS[label == LABELS].sum() for label in range(3)])
    np.testing.assert_allclose(found * weighed, np.full(3, ROW_WEIGHTS.sum() / 3), rtol=1e-6)


def test_balanced_label_sets_weigh_presence_against_absence() -> None:
    space, labels = LabelSpace("multi_label", ("a", "b", "c")), np.array([[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]])
    # As many without as with: 3 of 1; never there; always there.
    assert made("balanced", space=space, labels=labels).class_weights.tolist() == [3.0, 4.0, 0.25]
    found = made("balanced", space=space, labels=SETS, row_weights=ROW_WEIGHTS).class_weights
    present = (SETS * ROW_WEIGHTS[:, None]).sum(axis=0)
    np.testing.assert_allclose(found.numpy(), (ROW_WEIGHTS.sum() - present) / present, rtol=1e-6)


@pytest.mark.parametrize(
    "spelling",
    [
        (0.5, 1, 2),
        ["0.5", "1", "2"],
        " 0.5, 1 ,2.0",
        {"bad": 0.5, "fair": 1, "good": 2},
        {"good": "2", "bad": 0.5, "fair": 1},
    ],
)
def test_weights_in_every_spelling(spelling: object) -> None:
    assert made(spelling).class_weights.tolist() == [0.5, 1.0, 2.0]
    # Names that YAML reads as numbers are names.
    assert made({2: 3.0, 1: 0.5, 3: 1.0}, space=STARS).class_weights.tolist() == [0.5, 3.0, 1.0]


NOT_THREE = "expected balanced, or 3 numbers of at least 0, one for each of bad, fair, good"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *((wrong, NOT_THREE) for wrong in ([1, 2], [1, 2, 3, 4], [1, -1, 1], [0, 0, 0], [1, None, 1], [1, "x", 1])),
        *((wrong, NOT_THREE) for wrong in ([1, math.nan, 1], [1, math.inf, 1], "balance", "1,2", 3, True)),
        ({"bad": 1, "fair": 1, "good": None}, NOT_THREE),
        ({"bad": 1, "good": 2}, "got ['bad', 'good'], expected ['bad', 'fair', 'good']"),
        ({"bad": 1, "fair": 1, "great": 2}, "got ['bad', 'fair', 'great'], expected"),
    ],
)
def test_weights_that_do_not_fit_are_refused(wrong: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_objective(ObjectiveConfig(class_weights=wrong), THREE)
    assert str(caught.value).startswith("objective.class_weights: got ")
    assert message in str(caught.value)


# What goes together


@pytest.mark.parametrize(
    ("space", "loss"),
    [
        *((space, loss) for space in (THREE, STARS) for loss in ("mse", "pearson", "binary-cross-entropy")),
        *((SCORE, loss) for loss in ("cross-entropy", "binary-cross-entropy", "focal", "corn")),
        (THREE, "corn"),
    ],
)
def test_a_loss_that_does_not_fit_the_task_is_refused_and_those_that_it_names_are_taken(space, loss):
    wanted = rf"objective\.loss: got '{loss}', which does not fit an? {space.task_type} task; expected auto"
    with pytest.raises(ConfigError, match=wanted) as caught:
        made(space=space, loss=loss)
    for name in str(caught.value).split("one of ")[1].split(" (")[0].rstrip(".").split(", "):
        if name != "corn":  # it wants two classes too
            assert made(space=space, loss=name).loss == name
    assert ("data.task_type ordinal" in str(caught.value)) == (loss == "corn")


def test_corn_of_one_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="corn needs at least two classes, but this task has 1"):
        made(space=LabelSpace("ordinal", ("a",)), loss="corn", labels=np.zeros(4, dtype=np.int64))


@pytest.mark.parametrize("options", [{"class_weights": "balanced"}, {"label_smoothing": 0.1}])
def test_weights_and_smoothing_need_classes(options: dict) -> None:
    with pytest.raises(ConfigError, match="class_weights and label_smoothing need classes; this task is a regression"):
        check_objective(ObjectiveConfig(**options), SCORE)


@pytest.mark.parametrize(
    ("space", "options"),
    [
        (THREE, {"loss": "focal"}),
        (THREE, {"class_weights": "balanced"}),
        (STARS, {"loss": "corn"}),
        (CASES[5][0], {"label_smoothing": 0.1}),
        (SCORE, {"loss": "pearson"}),
    ],
)
def test_soft_targets_refuse_other_losses_weights_and_smoothing(space: LabelSpace, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"for rows with soft targets, expected loss \S+ \(or auto\) alone"):
        made(space=space, soft_targets=True, **options)


def test_the_expected_value_is_for_classes_with_an_order() -> None:
    assert with_ordinal_prediction(STARS, "expected-value") == replace(STARS, ordinal_prediction="expected-value")
    for space in (THREE, SCORE, STARS):
        assert with_ordinal_prediction(space, "argmax") == space
    for space in (THREE, SCORE):
        wanted = "objective.ordinal_prediction: got 'expected-value', which needs"
        with pytest.raises(ConfigError, match=wanted) as caught:
            with_ordinal_prediction(space, "expected-value")
        assert f"this is a {space.task_type} task" in str(caught.value)


@pytest.mark.parametrize("name", sorted(name for name, metric in METRICS.items() if metric.needs == "an order"))
def test_errors_cannot_choose_among_weights_whose_predictions_have_no_scale(name: str) -> None:
    check_metric(made(space=SCORE), METRICS[name])
    pearson = made(space=SCORE, loss="pearson")
    if name in ("mean_absolute_error", "mean_squared_error"):
        with pytest.raises(ConfigError, match=f"training.metric_for_best_model: got '{name}', but objective.loss"):
            check_metric(pearson, METRICS[name])
    else:
        check_metric(pearson, METRICS[name])
