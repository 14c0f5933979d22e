"""`AttentuneAuto`: the best model within a time limit, as a scikit-learn estimator."""

import pickle
import shutil

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor

import attentune
from attentune.errors import ConfigError
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.predictor import Predictor
from attentune.integrations.sklearn import AttentuneAuto
from helpers.samples import BAD, FILLER, GOOD
from helpers.tiny_runs import saved_ensemble

WORDS = np.random.default_rng(0)


def reviews(rows: int) -> tuple[list[str], np.ndarray]:
    labels = np.arange(rows) % 2
    texts = [" ".join([*WORDS.choice(FILLER, 3), WORDS.choice(GOOD if label else BAD)]) for label in labels]
    return texts, labels


@pytest.fixture
def quick():
    """Arguments of a search among models that need no encoder."""
    return {
        "portfolio": ["majority", "tfidf-linear"],
        "time_limit": "1h",
        "jobs": 1,
        "settings": {"training.use_cpu": True},
    }


def test_it_learns_and_survives_pickling(quick, tmp_path):
    texts, labels = reviews(60)
    model = AttentuneAuto(**quick, output_dir=tmp_path / "run").fit(texts, labels)
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


@pytest.mark.integration
def test_scores_with_fractions_are_regression(quick):
    texts, labels = reviews(40)
    model = AttentuneAuto(**quick).fit(texts, labels * 2.5)
    assert model.result_.metric == "pearson"
    assert model.predict(texts).dtype == np.float64
    assert model.score(texts, labels * 2.5) > 0.9
    with pytest.raises(AttributeError, match="scores have no probabilities"):
        model.predict_proba(texts)


@pytest.mark.integration
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


def test_it_is_cloned_and_tagged():
    model = AttentuneAuto(time_limit="90s", encoders=["a", "b"])
    assert clone(model).get_params() == model.get_params()
    assert is_classifier(AttentuneAuto())
    assert is_regressor(AttentuneAuto(task_type="regression"))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"time_limit": "soon"}, ConfigError, "time_limit: got 'soon'"),
        ({"task_type": "ordinal"}, ValueError, "task_type: got 'ordinal', expected classification or regression"),
        ({"portfolio": ["cosine"]}, ConfigError, "cosine is for pairs of texts"),
        ({"deliver": "all"}, ConfigError, "--deliver: got 'all'"),
    ],
)
def test_mistakes_are_refused(quick, change, error, says):
    texts, labels = reviews(20)
    with pytest.raises(error, match=says):
        AttentuneAuto(**quick | change).fit(texts, labels)
