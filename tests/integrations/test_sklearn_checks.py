"""scikit-learn's own checks of estimators.

They pass numbers as X, which are written as words here.
"""

import inspect
from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from sklearn.utils.validation import validate_data

from attentune.integrations.sklearn import AttentuneClassifier, AttentuneRegressor

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
