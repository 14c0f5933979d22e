"""Fits of fusions against plain references and without leaks, and the estimate for new rows with its interval."""

import itertools
import time
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize
from scipy.stats import binom

from attentune.automl import fusion
from attentune.automl.fusion import (
    Effort,
    FusionProblem,
    _choose_kind,
    _cross_fit,
    _fit_single,
    choose_effort,
    estimate_score,
    fit_fusion,
)
from attentune.automl.thresholds import fit_thresholds
from attentune.data.dataset import LabelSpace
from attentune.inference.fusion import FUSION_KINDS
from attentune.metrics.calibration import fit_temperature
from attentune.metrics.metrics import METRICS, predictions_of, probabilities_of
from attentune.stats.estimate import wilson_interval
from helpers.tiers import covering

BINARY = LabelSpace("classification", ("no", "yes"))
SPACES = {
    "accuracy": LabelSpace("classification", ("x", "y", "z")),
    "f1": BINARY,
    "quadratic_weighted_kappa": LabelSpace("ordinal", ("low", "middle", "high")),
    "f1_macro": LabelSpace("multi_label", ("x", "y", "z")),
    "pearson": LabelSpace("regression"),
}


def labels_of(space, count, generator):
    if space.task_type == "regression":
        return generator.normal(size=count)
    if space.is_multilabel:
        return (generator.random((count, space.num_labels)) < 0.4).astype(np.int64)
    return generator.integers(0, space.num_labels, count)


def member(space, labels, signal, generator):
    """Logits with a signal about the labels and standard normal noise."""
    if space.task_type == "regression":
        clean_NC = labels[:, None]
    else:
        clean_NC = 2.0 * (labels if space.is_multilabel else np.eye(space.num_labels)[labels]) - 1
    return signal * clean_NC + generator.normal(size=clean_NC.shape)


def problem_of(logits, labels, space, metric):
    return FusionProblem(logits, labels, np.arange(len(labels)) % 5, space, METRICS[metric])


def fit(logits, labels, space, metric, **options):
    return fit_fusion(problem_of(logits, labels, space, metric), **options)


def crossed_score(kind, problem):
    """The score of a kind of fusion in rows that it was not fitted on."""
    return problem.metric.score(problem.labels, predictions_of(_cross_fit(kind, problem)[0], problem.space))


@covering("metric, kind", list(SPACES), ["weights", "linear"])
def test_fusing_complementary_members_beats_each(metric, kind):
    generator, space = np.random.default_rng(0), SPACES[metric]
    labels = labels_of(space, 300, generator)
    logits = {f"m{i}": member(space, labels, 0.8, generator) for i in range(3)}
    result, score = fit(logits, labels, space, metric, kinds=(kind,)), METRICS[metric].score
    assert result.fusion.kind == kind
    members = [score(labels, predictions_of(values, space)) for values in logits.values()]
    assert score(labels, predictions_of(result.logits, space)) > max(members) + 0.02
    fresh = labels_of(space, 400, generator)
    held_out = {name: member(space, fresh, 0.8, generator) for name in logits}
    fused = score(fresh, predictions_of(result.fusion.apply(held_out), space))
    assert fused > max(score(fresh, predictions_of(values, space)) for values in held_out.values()) + 0.02
    assert f"({kind}) is delivered" in result.reason
    assert "its loss is lower" in result.reason


@pytest.mark.parametrize("metric", SPACES)
def test_noise_members_do_not_hurt(metric):
    generator, space = np.random.default_rng(1), SPACES[metric]
    labels = labels_of(space, 300, generator)
    logits = {f"noise{i}": member(space, labels, 0.0, generator) for i in range(4)}
    logits["good"] = member(space, labels, 1.0, generator)
    result = fit(logits, labels, space, metric)
    assert result.simplest_member == "good"
    alone, fused = (
        METRICS[metric].score(labels, predictions_of(one, space)) for one in (logits["good"], result.logits)
    )
    assert fused > alone - 0.03
    assert all(crossed_score(kind, problem_of(logits, labels, space, metric)) > alone - 0.1 for kind in FUSION_KINDS)
    assert "good" in result.fusion.members


def members_of_one_fold(labels, folds, generator):
    """Members that know the labels of one fold each, and nothing of the others."""
    logits = {}
    for fold in np.unique(folds):
        noise_NC = 3 * generator.normal(size=(len(labels), 2))
        logits[f"m{fold}"] = np.where((folds == fold)[:, None], 6.0 * np.eye(2)[labels] - 3.0, noise_NC)
    return logits


@pytest.mark.parametrize("kind", FUSION_KINDS)
def test_labels_known_through_their_own_fold_only_gain_nothing(kind):
    """Without cross-fitting all members together would know a part of every label."""
    scores = []
    for seed in range(3):
        generator = np.random.default_rng(seed)
        labels, folds = generator.integers(0, 2, 500), np.arange(500) % 5
        logits = members_of_one_fold(labels, folds, generator)
        scores.append(crossed_score(kind, FusionProblem(logits, labels, folds, BINARY, METRICS["accuracy"], seed)))
    assert np.mean(scores) < 0.5 + 3 * 0.5 / np.sqrt(3 * 500)


def test_weights_minimise_the_loss():
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 3, 200)
    logits = {f"m{i}": member(SPACES["accuracy"], labels, 0.3 + 0.2 * i, generator) for i in range(3)}
    found = fit(logits, labels, SPACES["accuracy"], "accuracy", kinds=("weights",)).fusion
    shares = [np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) for z in logits.values()]

    def loss(weights):
        mean = sum(w * share for w, share in zip(weights, shares, strict=True))
        return -np.mean([np.log(mean[row, label]) for row, label in enumerate(labels)])

    wanted = optimize.minimize(
        loss, [1 / 3] * 3, bounds=[(0, 1)] * 3, constraints={"type": "eq", "fun": lambda w: sum(w) - 1}, method="SLSQP"
    ).x
    weights = found.member_weights()
    # Weights below 2 % are left out.
    np.testing.assert_allclose([weights.get(name, 0.0) for name in logits], wanted, atol=0.03)
    assert loss([weights.get(name, 0.0) for name in logits]) < loss(wanted) + 1e-3
    # Weights of scores minimise the squared error.
    generator, space = np.random.default_rng(3), SPACES["pearson"]
    labels = generator.normal(size=150)
    logits = {f"m{i}": labels[:, None] + generator.normal(size=(150, 1)) * (1 + i) for i in range(3)}
    weights = fit(logits, labels, space, "mean_squared_error", kinds=("weights",)).fusion.member_weights()
    step = 0.02
    grid = [(a, b, 1 - a - b) for a, b in itertools.product(np.arange(0, 1 + step, step), repeat=2) if a + b <= 1]
    stacked = np.stack([logits[name][:, 0] for name in logits])
    errors = [np.mean((np.array(w) @ stacked - labels) ** 2) for w in grid]
    mine = np.mean((np.array([weights.get(name, 0.0) for name in logits]) @ stacked - labels) ** 2)
    assert mine < min(errors) + 1e-3


def test_one_member_or_the_cheaper_of_equal_ones_is_delivered_as_it_is():
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 2, 20)
    result = fit({"only": member(BINARY, labels, 1.0, generator)}, labels, BINARY, "accuracy")
    assert (result.fusion.kind, result.fusion.members) == ("single", ("only",))
    assert "the only member" in result.reason
    # The cheaper of equal members is delivered.
    generator = np.random.default_rng(6)
    labels = generator.integers(0, 2, 300)
    logits = member(BINARY, labels, 1.0, generator)
    logits = {"bad": -logits, "cheap": logits, "dear": logits * 1.01}
    result = fit(logits, labels, BINARY, "accuracy", kinds=("weights",))
    assert (result.fusion.kind, result.fusion.members) == ("single", ("cheap",))
    assert result.reason.startswith("cheap is delivered")
    # Certain and wrong members and absent classes.
    labels = np.array([0, 1] * 30)
    certain = np.where(np.eye(3)[labels] == 1, 800.0, -800.0)
    certain[7] = certain[8]
    other = np.random.default_rng(9).normal(size=(60, 3))
    for kind in ("weights", "linear"):
        problem = problem_of({"other": other, "certain": certain}, labels, SPACES["accuracy"], "accuracy")
        assert crossed_score(kind, problem) > 0.95
    # A member that is eight times too certain has the loss of the same member without that.
    generator = np.random.default_rng(3)
    labels = labels_of(SPACES["accuracy"], 400, generator)
    logits = member(SPACES["accuracy"], labels, 1.0, generator)
    problems = [problem_of({"a": scale * logits}, labels, SPACES["accuracy"], "accuracy") for scale in (1, 8)]
    losses = [_cross_fit("single", problem)[1].mean() for problem in problems]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_the_loss_of_one_member_is_calibrated_on_the_same_member():
    """Folds choose one of two members of about equal worth, of which one is unsure and the other certain."""
    generator = np.random.default_rng(10)
    space = SPACES["accuracy"]
    labels = labels_of(space, 300, generator)
    logits = {name: scale * member(space, labels, 0.3, generator) for name, scale in (("unsure", 0.1), ("sure", 10.0))}
    folds = np.arange(300) % 5
    problem = FusionProblem(logits, labels, folds, space, METRICS["accuracy"])
    chosen = {fold: _fit_single(problem.take(np.flatnonzero(folds != fold))).members[0] for fold in range(5)}
    assert set(chosen.values()) == {"unsure", "sure"}
    _, losses_N = _cross_fit("single", problem)
    for fold, name in chosen.items():
        inside = folds == fold
        temperature = fit_temperature(logits[name][~inside], labels[~inside])
        shares_NC = probabilities_of(logits[name][inside] / temperature, space)
        for loss, share_C, label in zip(losses_N[inside], shares_NC, labels[inside], strict=True):
            assert loss == pytest.approx(-np.log(share_C[label]))
    assert losses_N.mean() < np.log(3)  # not worse than knowing nothing


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning:sklearn")  # ridge regression of two rows
@given(
    st.sampled_from(sorted(SPACES)),
    st.integers(2, 12),
    st.integers(0, 99),
    st.booleans(),
    st.sampled_from([FUSION_KINDS, ("linear",)]),
)
def test_few_rows_rare_classes_and_constant_members(metric, count, seed, has_constant, kinds):
    generator, space = np.random.default_rng(seed), SPACES[metric]
    labels = labels_of(space, count, generator)
    logits = {name: member(space, labels, 1.0, generator) for name in ("a", "b")}
    if has_constant:
        logits["constant"] = np.zeros_like(logits["a"])
    result = fit(logits, labels, space, metric, kinds=kinds)
    assert np.isfinite(result.logits).all()
    assert np.isfinite(result.fusion.apply(logits)).all()
    again = fit(logits, labels, space, metric, kinds=kinds)
    assert again.fusion == result.fusion
    np.testing.assert_array_equal(again.logits, result.logits)


@pytest.mark.parametrize(
    ("rows", "gap", "expected"), [(149, 0.05, "weights"), (149, 0.3, "single"), (150, 0.05, "single")]
)
def test_few_rows_are_averaged_unless_one_member_is_clearly_better(rows, gap, expected):
    """A mean whose loss is `gap` above that of a member alone, with a standard error of 0.08."""
    labels = np.arange(rows) % 2
    logits = np.stack([-1.0 * labels, 1.0 * labels], axis=1)
    problem = FusionProblem({"a": logits, "b": logits}, labels, labels, BINARY, METRICS["accuracy"], 1)
    noise = np.random.default_rng(0).normal(size=rows)
    noise = 0.08 * np.sqrt(rows) * (noise - noise.mean()) / noise.std(ddof=1)
    losses = {"single": np.full(rows, 1.0), "weights": 1.0 + gap + noise}
    assert _choose_kind({"single": logits, "weights": logits}, losses, problem) == expected


@pytest.mark.parametrize(("rows", "folds", "is_fitted"), [(149, 5, False), (150, 2, False), (150, 3, True)])
def test_a_linear_fusion_is_fitted_only_where_it_can_be_chosen(rows, folds, is_fitted, monkeypatch):
    generator, fitted, fit_linear = np.random.default_rng(0), [], fusion._fit_linear
    labels = labels_of(BINARY, rows, generator)
    logits = {name: member(BINARY, labels, 1.0, generator) for name in "ab"}
    monkeypatch.setattr(fusion, "_fit_linear", lambda problem: fitted.append(problem) or fit_linear(problem))
    fit_fusion(FusionProblem(logits, labels, np.arange(rows) % folds, BINARY, METRICS["accuracy"]))
    assert bool(fitted) == is_fitted


def test_a_linear_fusion_gives_the_majority_no_weight_and_converges():
    """Its log-odds differ between folds by the counts of classes only; blown up, they would slow the fit down."""
    generator, space = np.random.default_rng(0), SPACES["accuracy"]
    labels = labels_of(space, 300, generator)
    shares_FC = np.stack([np.bincount(labels[np.arange(300) % 5 != fold], minlength=3) for fold in range(5)]) / 240
    logits = {f"m{i}": member(space, labels, 0.8, generator) for i in range(2)}
    logits["majority"] = np.log(shares_FC)[np.arange(300) % 5]
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusion.warnings, "simplefilter", lambda *_: None)
        warnings.simplefilter("error")
        result = fit(logits, labels, space, "accuracy", kinds=("linear",))
    assert "majority" not in result.fusion.members
    # The constant part of a member is in the bias: the fused probabilities are those of the two others.
    alone = fit({name: logits[name] for name in ("m0", "m1")}, labels, space, "accuracy", kinds=("linear",))
    assert np.abs(result.fusion.apply(logits) - alone.fusion.apply(logits)).max() < 0.1


def many_classes(rows, classes, members=4):
    generator = np.random.default_rng(0)
    labels = np.arange(rows) % classes
    return labels, {
        f"m{i}": generator.normal(size=(rows, classes)) + (2 + 0.2 * i) * np.eye(classes)[labels]
        for i in range(members)
    }


def test_many_classes_have_a_weight_for_each_member_and_a_sample_predicts_all_rows():
    """Time and memory grow with rows and classes: no coefficient for each pair of classes, no copy for each cell."""
    space = LabelSpace("classification", tuple(map(str, range(150))))
    labels, logits = many_classes(1500, 150)
    tracemalloc.start()
    result = fit(logits, labels, space, "f1_macro")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (result.fusion.kind, result.fusion.coefficients) == ("weights", ())
    score = METRICS["f1_macro"].score
    members = [score(labels, predictions_of(values, space)) for values in logits.values()]
    assert score(labels, predictions_of(result.logits, space)) > max(members) + 0.05
    assert peak < 8 * sum(values.nbytes for values in logits.values())
    # Fitting on a sample predicts all rows.
    space = LabelSpace("classification", ("x", "y", "z"))
    labels, logits = many_classes(600, 3)
    result = fit(logits, labels, space, "accuracy", max_rows=200)
    assert np.isfinite(result.logits).all()
    scores = [
        METRICS["accuracy"].score(labels, predictions_of(one, space)) for one in (result.logits, *logits.values())
    ]
    assert scores[0] > max(scores[1:])


@pytest.mark.integration
@pytest.mark.parametrize(("rows", "classes"), [(100, 2), (1000, 20), (3000, 150), (5000, 500)])
def test_the_estimate_of_many_classes_needs_time_in_proportion_and_little_memory(rows, classes):
    space = LabelSpace("classification", tuple(map(str, range(classes))))
    labels, logits = many_classes(rows, classes)
    began = time.thread_time()
    tracemalloc.start()
    result = estimate_score(FusionProblem(logits, labels, np.arange(rows) % 5, space, METRICS["accuracy"]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.low <= result.value <= result.high
    assert peak < 2e9
    # Some 2 s here; with a coefficient for each pair of 150 classes it took more than 20 minutes.
    assert time.thread_time() - began < 60


# The estimate for new rows: chance for random labels, and intervals that cover the score on held-out rows.


SIGNALS = (0.2, 0.5, 0.5, 0.0)
SINGLE = Effort(kinds=("single",))


def draw(count, generator, positive=0.3):
    """Labels and the logits of members of different quality, which all lean towards the first class."""
    labels = (generator.random(count) < positive).astype(np.int64)
    logits = {}
    for place, signal in enumerate(SIGNALS):
        second = signal * (2 * labels - 1) * 2 - 0.3 + generator.normal(size=count)
        logits[f"m{place}"] = np.column_stack([np.zeros(count), second])
    return logits, labels


def covered(runs, rows, metric, kinds, first_seed=0):
    """Count the runs whose interval has the delivered model's score on 10,000 new rows."""
    hits, gaps = 0, []
    for seed in range(first_seed, first_seed + runs):
        generator = np.random.default_rng(seed)
        logits, labels = draw(rows, generator)
        folds = np.arange(rows) % 4
        problem = FusionProblem(logits, labels, folds, BINARY, METRICS[metric], seed)
        found = estimate_score(problem, Effort(kinds=kinds), resamples=200)
        fitted = fit_fusion(problem, kinds)
        space = fit_thresholds(fitted.logits, labels, BINARY, metric=METRICS[metric], folds=folds).label_space
        new, truth = draw(10_000, generator)
        score = METRICS[metric].score(truth, predictions_of(fitted.fusion.apply(new), space))
        hits += found.low <= score <= found.high
        gaps.append(found.value - score)
    return hits, np.array(gaps)


@pytest.mark.parametrize(
    ("metric", "rows", "runs"),
    [
        pytest.param("accuracy", 150, 40, marks=pytest.mark.integration),
        *(
            pytest.param(metric, rows, 150, marks=pytest.mark.slow)
            for metric, rows in (("accuracy", 300), ("f1", 300), ("matthews_correlation", 600))
        ),
    ],
)
def test_the_interval_covers_the_score_on_new_rows_in_about_95_percent(metric, rows, runs):
    kinds = ("single", "weights") if runs == 40 else ("single", "weights", "linear")
    hits, gaps = covered(runs, rows, metric, kinds, first_seed=0 if runs == 40 else 1000)
    assert hits >= binom.ppf(0.001, runs, 0.93)
    assert runs == 40 or hits <= binom.ppf(0.999, runs, 0.97)
    assert abs(gaps.mean()) < (3.5 * gaps.std() / np.sqrt(40) + 0.01 if runs == 40 else 0.02)


@pytest.mark.integration
def test_random_labels_have_a_chance_estimate():
    """Choosing the best of many members, kinds and thresholds does not make the estimate optimistic."""
    values = []
    for seed in range(6):
        generator = np.random.default_rng(seed)
        labels = generator.integers(0, 2, 120)
        logits = {f"m{i}": generator.normal(size=(120, 2)) for i in range(8)}
        metric = METRICS["matthews_correlation"]
        problem = FusionProblem(logits, labels, np.arange(120) % 4, BINARY, metric, seed)
        found = estimate_score(problem, Effort(kinds=("single", "weights")), resamples=10)
        values.append(found.value)
    assert abs(np.mean(values)) < 3.5 / np.sqrt(6 * 120)


@pytest.mark.parametrize(
    ("effort", "groups"),
    [
        pytest.param(Effort(parts=5), None, id="a fold", marks=pytest.mark.integration),
        # Few rows are divided into ten parts.
        pytest.param(SINGLE, np.arange(120) // 3, id="a group"),
    ],
)
def test_the_estimate_is_made_without_the_part_that_is_scored(effort, groups):
    """Changed labels of a fold or group leave its own nested predictions as they were."""
    logits, labels = draw(120, np.random.default_rng(1))
    folds, metric = np.arange(120) % 5 if groups is None else groups % 3, METRICS["f1"]
    inside = folds == 2 if groups is None else groups == 7
    changed = np.where(inside, 1 - labels, labels)
    first, second = (
        estimate_score(FusionProblem(logits, values, folds, BINARY, metric), effort, groups=groups, resamples=10)
        for values in (labels, changed)
    )
    np.testing.assert_array_equal(first.predictions[inside], second.predictions[inside])
    assert first.value == metric.score(labels, first.predictions)


def test_the_interval_is_wider_where_choices_vary():
    """A clear best member is chosen without any part; of two equal members with other scores it varies."""
    generator = np.random.default_rng(6)
    labels = generator.integers(0, 2, 200)
    clear = {name: np.column_stack([np.zeros(200), 2 * labels - 1 + 0.8 * generator.normal(size=200)]) for name in "ab"}
    clear["b"] = generator.normal(size=(200, 2))
    folds, metric = np.arange(200) % 5, METRICS["accuracy"]
    found = estimate_score(FusionProblem(clear, labels, folds, BINARY, metric), SINGLE)
    plain = wilson_interval(round(found.value * 200), 200)
    np.testing.assert_allclose((found.low, found.high), plain)
    alike = {
        name: np.column_stack([np.zeros(200), 0.4 * (2 * labels - 1) + generator.normal(size=200)]) for name in "abc"
    }
    found = estimate_score(FusionProblem(alike, labels, folds, BINARY, metric), SINGLE)
    low, high = wilson_interval(round(found.value * 200), 200)
    assert found.low < low
    assert found.high > high
    # Rules that vary widely where nearly all is right: the interval ends at 1.
    few = {name: np.column_stack([np.zeros(40), 2.0 * labels[:40] - 1]) for name in "ab"}
    few["a"][:3] *= -1
    few["b"][37:] *= -1
    found = estimate_score(FusionProblem(few, labels[:40], folds[:40], BINARY, metric), SINGLE)
    assert found.high <= 1


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (100, (3, None, None)),  # 2 s for all 4,000 rows, ten times for the estimate: all of it
        (15, (3, None, 3000)),  # a sample of the rows
        (1.2, (2, None, 1200)),  # without the kinds whose fits take long
        (0.001, (1, 5, 150)),
    ],
)
def test_fusing_and_estimating_are_cheapened_until_they_fit(seconds, expected):
    def seconds_of(kinds, rows):
        return rows * (5e-4 if "linear" in kinds else 1e-4)

    effort = choose_effort(seconds_of, rows=4000, folds=5, fuse_s=seconds, estimate_s=seconds)
    assert (len(effort.kinds), effort.parts) == expected[:2]
    assert effort.max_rows == pytest.approx(expected[2], rel=0.05) if expected[2] else effort.max_rows is None
    if seconds > 0.1:
        assert (effort.parts or 10) * effort.seconds <= seconds * 1.01
