"""The scikit-learn estimators, in scikit-learn's own hands."""

import importlib
import inspect
import pickle
import shutil
from typing import Any

import numpy as np
import pandas
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from sklearn.utils.validation import validate_data

import attentune
from attentune.errors import ConfigError
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.predictor import Predictor
from attentune.integrations.sklearn import AttentuneAuto, AttentuneClassifier, AttentuneRegressor, labels_of, texts_of
from helpers.samples import BAD, FILLER, GOOD
from helpers.tiers import leading
from helpers.tiny_runs import saved_ensemble


def reviews(rows: int) -> tuple[list[str], list[str]]:
    draw = np.random.default_rng(rows)
    labels = ["good" if number % 2 else "bad" for number in range(rows)]
    texts = [" ".join([*draw.choice(FILLER, 3), draw.choice(GOOD if label == "good" else BAD)]) for label in labels]
    return texts, labels


@pytest.fixture
def fast(tiny):
    """Arguments of a tiny, quick model that learns."""
    return {
        "model_name_or_path": str(tiny("bert")),
        "learning_rate": 3e-3,
        "num_train_epochs": 6,
        "per_device_train_batch_size": 8,
        "max_length": 32,
        "settings": {"training.use_cpu": True},
    }


def test_it_learns_and_predicts_as_the_run_does_also_from_a_pickle_without_its_folder(fast):
    texts, labels = reviews(48)
    model = AttentuneClassifier(**fast).fit(texts, labels)
    assert model.score(texts, labels) > 0.9
    assert model.classes_.tolist() == ["bad", "good"]
    shares = model.predict_proba(texts[:5])
    assert shares.sum(axis=1) == pytest.approx(np.ones(5), abs=1e-6)
    told = attentune.predict(model.run_, texts[:5])
    assert model.predict(texts[:5]).tolist() == [one["prediction"] for one in told]
    assert shares[:, 1] == pytest.approx([one["probabilities"]["good"] for one in told], abs=1e-6)
    content = pickle.dumps(model)
    shutil.rmtree(model.run_.folder)
    again = pickle.loads(content)
    assert np.array_equal(again.predict_proba(texts[:5]), shares)
    assert pickle.loads(pickle.dumps(again)).classes_.tolist() == ["bad", "good"]


BITS = np.array([[place % 2, place // 2 % 2] for place in range(16)])
LISTS = [["kind"], ["kind", "rude"]] * 8


@pytest.mark.parametrize("estimator", [AttentuneClassifier, AttentuneRegressor, AttentuneAuto])
@pytest.mark.parametrize(
    ("labels", "got"),
    [
        (BITS, r"got an array of shape \(16, 2\) instead"),
        (BITS.tolist(), r"got an array of shape \(16, 2\) instead"),
        (pandas.DataFrame(BITS), r"got an array of shape \(16, 2\) instead"),
        (csr_matrix(BITS), r"got a sparse matrix of shape \(16, 2\) instead"),
        (LISTS, r"got \['kind', 'rude'\] in row 1 instead.*multi_label"),
        (np.array(LISTS, dtype=object), r"got \['kind'\] in row 0 instead"),
        (pandas.Series(LISTS), r"got \['kind'\] in row 0 instead"),
        ([{"kind"}, {"rude"}] * 8, r"got \{'kind'\} in row 0 instead"),
        (None, "got None instead"),
    ],
)
def test_several_labels_a_row_are_refused_as_by_scikit_learn(estimator, labels, got):
    with pytest.raises(ValueError, match=f"y should be a 1d array, {got}"):
        estimator().fit([f"text {place}" for place in range(16)], labels)


def test_pairs_in_every_form(fast):
    texts, labels = reviews(16)
    pairs = [(text, "a film") for text in texts]
    model = AttentuneClassifier(**fast | {"num_train_epochs": 1}).fit(pairs, labels)
    assert model.n_features_in_ == 2
    assert model.predict(np.array(pairs, dtype=object)).tolist() == model.predict(pairs).tolist()
    with pytest.raises(ValueError, match="X has 1 texts a row, but this was fitted on 2"):
        model.predict(texts)


@pytest.mark.integration
def test_a_regressor(fast):
    texts, labels = reviews(48)
    scores = [float(label == "good") + number / 1000 for number, label in enumerate(labels)]
    model = AttentuneRegressor(**fast | {"num_train_epochs": 12}, validation_share=0.25).fit(texts, scores)
    assert model.score(texts, scores) > 0.3
    assert model.predict(texts[:3]).dtype == np.float64
    assert list(model.result_.scores["validation"]) == ["pearson", "spearmanr", "mean_absolute_error"]


def test_clones_are_fresh_and_seeds_repeat(fast):
    texts, labels = reviews(16)
    model = AttentuneClassifier(**fast | {"num_train_epochs": 1}, preset="ssa-hybrid", alpha=0.9)
    assert clone(model).get_params() == model.get_params()
    first, second = (clone(model).fit(texts, labels).predict_proba(texts) for _ in range(2))
    assert np.array_equal(first, second)
    other = clone(model).set_params(random_state=1).fit(texts, labels)
    assert not np.array_equal(other.predict_proba(texts), first)
    assert other.run_.config.objective.alpha == 0.9


def test_a_validation_part_is_scored_and_has_no_text_of_the_other_part(fast, tmp_path):
    texts, labels = reviews(12)
    more = {"num_train_epochs": 1, "validation_share": 0.3, "output_dir": tmp_path / "run"}
    model = AttentuneClassifier(**fast | more).fit([*texts, *map(str.upper, texts)], labels * 2)
    assert set(model.result_.scores) == {"validation"}
    assert attentune.Predictor.load(tmp_path / "run").label_space.names == ("bad", "good")
    (path,) = (tmp_path / "run").glob("predictions*validation*")
    numbers = [int(line.split(",")[0]) % 12 for line in path.read_text().splitlines()[1:]]
    assert len(numbers) == 2 * len(set(numbers))


@pytest.mark.integration
def test_in_scikit_learns_tools(fast):
    texts, labels = reviews(24)
    quick = AttentuneClassifier(**fast | {"num_train_epochs": 1})
    found = GridSearchCV(quick, {"preset": ["bert", "ssa-hybrid"], "learning_rate": [1e-3]}, cv=2).fit(texts, labels)
    assert found.best_params_["preset"] in ("bert", "ssa-hybrid")
    lower = FunctionTransformer(lambda rows: [text.lower() for text in rows])
    assert len(make_pipeline(lower, quick).fit(texts, labels).predict(texts)) == 24
    alone, together = (cross_val_score(quick, texts, labels, cv=2, n_jobs=jobs) for jobs in (1, 2))
    assert together.tolist() == alone.tolist()
    calibrated = CalibratedClassifierCV(quick, cv=2).fit(np.array(texts, dtype=object), labels)
    assert calibrated.predict_proba(np.array(texts[:2], dtype=object)).shape == (2, 2)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ("one text", ["a"], "inconsistent numbers|put it in"),
        (["a", None], [0, 1], r"row 1 holds None \(NoneType\), expected a text"),
        (["a", 3.5], [0, 1], "row 1 holds 3.5"),
        ([("a", "b", "c"), ("a", "b", "c")], [0, 1], "rows of 3 texts, expected 1 or 2"),
        (["a", ("b", "c")], [0, 1], "rows of 1, 2 texts"),
        (csr_matrix(np.eye(2)), [0, 1], "X: got a sparse matrix, expected texts"),
        (["a", "b"], [0, 0], "got one class"),
        (["a", "b"], [0.5, 1.5], "unknown label type"),
        (["a", "b"], [0], "inconsistent"),
        (["a", "b"], np.array([1, "1"], dtype=object), "row 1 holds .* labels of one type"),
    ],
)
def test_mistakes(fast, X, y, message):
    with pytest.raises((ValueError, TypeError), match=message):
        AttentuneClassifier(**fast).fit(X, y)


def test_settings_are_checked(fast):
    with pytest.raises(attentune.AttentuneError, match="Did you mean 'bert'"):
        AttentuneClassifier(**fast | {"preset": "brt"}).fit(["a", "b"], [0, 1])
    with pytest.raises(ValueError, match="random_state: got None, expected a whole number"):
        AttentuneClassifier(**fast | {"random_state": None}).fit(["a", "b"], [0, 1])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_and_columns(library):
    frames = importlib.import_module(library)
    frame = frames.DataFrame({"a": ["x", "y"], "b": ["1", "2"]})
    assert texts_of(frame) == (("x", "y"), ("1", "2"))
    assert texts_of(frame["a"]) == (("x", "y"), None)
    assert texts_of(frame[["a"]]) == (("x", "y"), None)
    with pytest.raises(ValueError, match=r"X: row 1 holds (None|nan) \((NoneType|float)\), expected a text"):
        texts_of(frames.DataFrame({"a": ["x", None]})["a"])


@pytest.mark.integration
def test_weights_of_rows(fast):
    """Wrong rows of little weight do little harm; weights that are all alike are none."""
    texts, labels = reviews(48)
    wrong = ["bad" if label == "good" else "good" for label in labels]
    quick = AttentuneClassifier(**fast)
    both, weights = labels + wrong, [1.0] * 48 + [0.05] * 48
    model = clone(quick).fit(texts + texts, both, sample_weight=weights)
    assert model.score(texts, labels) > 0.9
    assert model.run_.config.training.num_train_epochs == 6
    few = AttentuneClassifier(**fast | {"num_train_epochs": 1})
    plain, alike, doubled = (
        clone(few).fit(texts, labels, sample_weight=given).predict_proba(texts[:4])
        for given in (None, [2.0] * 48, np.r_[np.full(24, 2.0), np.full(24, 4.0)])
    )
    assert np.array_equal(plain, alike)
    assert not np.array_equal(plain, doubled)
    halved = clone(few).fit(texts, labels, sample_weight=np.r_[np.full(24, 0.5), np.full(24, 1.0)])
    assert np.array_equal(halved.predict_proba(texts[:4]), doubled)
    scores = AttentuneRegressor(**fast | {"num_train_epochs": 1}, validation_share=0.25)
    scores.fit(texts, np.arange(48.0), sample_weight=np.arange(48))
    assert list(scores.result_.scores) == ["validation"]


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [1.0, np.nan], [1.0, np.inf]])
def test_weights_that_cannot_be(fast, weights):
    with pytest.raises(
        ValueError,
        match=r"sample_weight: got \d values .* expected a number of at least 0 for each of 2 rows, not all zero",
    ):
        AttentuneClassifier(**fast).fit(["a", "b"], [0, 1], sample_weight=weights)


GAPS = [None, float("nan"), b"x", 3]


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("container", [list, np.array, pandas.Series])
def test_what_is_no_text_is_named_with_its_row_and_the_count(gap, container):
    texts = container(np.array(["a", "b", gap, "c", gap], dtype=object))
    with pytest.raises(ValueError, match=r"X: row 2 holds .* and 1 more row likewise, expected a text"):
        texts_of(texts)
    with pytest.raises(attentune.AttentuneError, match="X, text 2: row 1 holds"):
        texts_of([("a", "b"), ("a", gap)])


@pytest.mark.parametrize("gap", [None, float("nan"), pandas.NA, pandas.NaT])
@pytest.mark.parametrize("container", [list, pandas.Series])
@pytest.mark.parametrize("labels", [["pos", "neg"], [1, 0]])
def test_missing_labels_are_named_with_their_row_and_the_count(gap, container, labels):
    y = [labels[row % 2] for row in range(40)]
    y[5] = y[9] = y[11] = gap
    y = container(y) if container is list else container(y, dtype=object)
    with pytest.raises(ValueError, match=r"y: row 5 holds .* and 2 more rows likewise, expected a label"):
        AttentuneClassifier(preset="tfidf-linear").fit(["text"] * 40, y)
    with pytest.raises(ValueError, match="y: row"):
        AttentuneRegressor(preset="tfidf-linear").fit(["text"] * 40, y)


def test_labels_of_two_types_and_twins(fast):
    with pytest.raises(ValueError, match=r"y: row 1 holds 1 \(int\) and 19 more rows likewise, expected a text as in"):
        labels_of([1 if row % 2 else "1" for row in range(40)])
    with pytest.raises(ValueError, match=r"y: row 1 holds inf"):
        labels_of([0.0, np.inf, 1.0])
    with pytest.raises(ValueError, match=r"y: row 0 holds b'x'"):
        labels_of([b"x", "y"])
    with pytest.warns(UserWarning, match=r"'1' and '1.0' are equal"):
        assert labels_of(["1", "1.0", "0"]).tolist() == ["1", "1.0", "0"]
    assert labels_of([1, 1.0, 0]).tolist() == [1, 1, 0]


@pytest.mark.parametrize("gap", GAPS)
def test_predict_names_what_is_no_text(gap):
    with pytest.raises(ValueError, match=r"texts: row 1 holds .*expected a text"):
        attentune.predict("no run is read", ["fine", gap])
    with pytest.raises(attentune.AttentuneError, match=r"pairs: row 0 holds .*expected a text"):
        attentune.predict("no run is read", ["fine"], [gap])


# `AttentuneAuto`: the best model within a time limit, as a scikit-learn estimator


def numbered(rows: int) -> tuple[list[str], np.ndarray]:
    texts, labels = reviews(rows)
    return texts, np.array([int(label == "good") for label in labels])


@pytest.fixture
def quick():
    """Arguments of a search among models that need no encoder."""
    return {
        "portfolio": ["majority", "tfidf-linear"],
        "time_limit": "1h",
        "jobs": 1,
        "settings": {"training.use_cpu": True},
    }


@leading("portfolio", [["tfidf-linear"], ["majority", "tfidf-linear"]])
def test_auto_learns_and_survives_pickling(quick, tmp_path, portfolio):
    texts, labels = numbered(60)
    model = AttentuneAuto(**quick | {"portfolio": portfolio}, output_dir=tmp_path / "run").fit(texts, labels)
    assert model.score(texts, labels) > 0.9
    with pytest.raises(ValueError, match="class 7, which was not fitted"):
        model.score(texts, np.where(labels == 1, 7, labels))
    assert model.classes_.tolist() == [0, 1]
    shares_NC = model.predict_proba(texts[:5])
    assert shares_NC.sum(axis=1) == pytest.approx(np.ones(5))
    assert model.result_.estimate["value"] > 0.8
    assert model.result_.leaderboard[0].name == "tfidf-linear"
    told = attentune.predict(tmp_path / "run", texts[:5])
    assert model.predict(texts[:5]).tolist() == [int(one["prediction"]) for one in told]
    content = pickle.dumps(model)
    shutil.rmtree(tmp_path / "run")
    assert pickle.loads(content).predict_proba(texts[:5]) == pytest.approx(shares_NC)


def test_auto_keeps_its_run_when_another_fit_fails(quick):
    texts, labels = numbered(60)
    model = AttentuneAuto(**quick | {"portfolio": ["majority"]}).fit(texts, labels)
    expected = model.predict_proba(texts[:2])
    with pytest.raises(ConfigError):
        model.set_params(time_limit="soon").fit(texts, labels + 5)
    assert model.run_.folder.is_dir()
    assert model.classes_.tolist() == [0, 1]
    assert pickle.loads(pickle.dumps(model)).predict_proba(texts[:2]) == pytest.approx(expected)


@pytest.mark.integration
def test_scores_with_fractions_are_regression(quick):
    texts, labels = numbered(40)
    model = AttentuneAuto(**quick).fit(texts, labels * 2.5)
    assert model.result_.metric == "pearson"
    assert model.predict(texts).dtype == np.float64
    assert model.score(texts, labels * 2.5) > 0.9
    with pytest.raises(AttributeError, match="scores have no probabilities"):
        model.predict_proba(texts)


def test_an_ensemble_survives_pickling(tiny, tmp_path):
    model = AttentuneAuto()
    model.run_, model.n_features_in_ = Predictor.load(saved_ensemble(tmp_path / "run", tiny)), 1
    model.classes_ = np.array(model.run_.label_space.names)
    expected = model.predict_proba(["a fine film"])
    content = pickle.dumps(model)
    shutil.rmtree(tmp_path / "run")
    restored = pickle.loads(content)
    assert isinstance(restored.run_, EnsemblePredictor)
    assert restored.predict_proba(["a fine film"]) == pytest.approx(expected)


def test_auto_scores_errors_negated(quick):
    texts, labels = numbered(40)
    quick |= {"portfolio": ["majority"], "metric": "mean_absolute_error", "task_type": "regression"}
    frame = pandas.DataFrame({0: texts})  # a column without a name
    model = AttentuneAuto(**quick).fit(frame, labels)
    assert model.score(frame, labels) == pytest.approx(-np.abs(model.predict(frame) - labels).mean())
    with pytest.raises(ValueError, match="there is no column 0, which was fitted on"):
        model.predict(frame.rename(columns={0: 1}))


def test_auto_is_cloned_and_tagged():
    model = AttentuneAuto(time_limit="90s", encoders=["a", "b"])
    assert clone(model).get_params() == model.get_params()
    assert is_classifier(AttentuneAuto())
    assert is_regressor(AttentuneAuto(task_type="regression"))


def test_auto_has_classes_or_scores(quick):
    with pytest.raises(ValueError, match="task_type: got 'ordinal', expected classification or regression"):
        AttentuneAuto(**quick, task_type="ordinal").fit(*numbered(20))


# scikit-learn's own checks of estimators


NO_REPETITION = "a weight scales a row's loss; it does not repeat the row, which also changes steps and word counts"
# Older releases take no xfail_strict; there, a check of these that passes is no error.
STRICT = {"xfail_strict": True} if "xfail_strict" in inspect.signature(parametrize_with_checks).parameters else {}


class NumbersAsWords:
    """Reads a row of numbers as a text: a word for each number, of its column and its size in halves."""

    def _texts(self, X: Any, *, reset: bool) -> tuple[tuple[str, ...], None]:
        rows = validate_data(self, X, reset=reset).tolist()
        return tuple(" ".join(map(word, range(len(row)), row)) for row in rows), None


def word(column: int, value: float) -> str:
    return f"c{column}v{round(2 * float(value))}".replace("-", "m")


class WordClassifier(NumbersAsWords, AttentuneClassifier):
    pass


class WordRegressor(NumbersAsWords, AttentuneRegressor):
    pass


@pytest.mark.integration
@parametrize_with_checks(
    [WordClassifier(preset="tfidf-linear"), WordRegressor(preset="tfidf-linear")],
    expected_failed_checks=lambda estimator: {"check_sample_weight_equivalence_on_dense_data": NO_REPETITION},
    **STRICT,
)
def test_checks_with_numbers_as_words(estimator, check):
    check(estimator)


# Of an encoder: whether it changes what it is given, depends on the order or number of rows, or cannot be repeated.
OF_ENCODERS = (
    "check_dict_unchanged",
    "check_estimators_pickle",
    "check_fit_check_is_fitted",
    "check_fit_idempotent",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_n_features_in",
    "check_readonly_memmap_input",
    "check_sample_weights_not_overwritten",
    "check_supervised_y_2d",
)


@pytest.mark.integration
@pytest.mark.parametrize("made", [WordClassifier, WordRegressor])
def test_checks_with_an_encoder(tiny, made):
    estimator = made(
        model_name_or_path=str(tiny("bert")),
        num_train_epochs=1,
        per_device_train_batch_size=16,
        max_length=64,
        settings={"training.use_cpu": True, "training.precision": "fp32"},
    )
    done = set()
    for checked, check in estimator_checks_generator(estimator):
        name = check.func.__name__
        if name in OF_ENCODERS:
            check(checked)
            done.add(name)
    assert done == set(OF_ENCODERS)
