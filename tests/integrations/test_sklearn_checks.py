"""scikit-learn's own checks of estimators.

They pass numbers as X. As they are, they show what needs no X: parameters, cloning, tags, wrong y, sparse X. With the
numbers written as words, all of them apply.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from sklearn.utils.validation import validate_data

from attentune.integrations.sklearn import AttentuneAuto, AttentuneClassifier, AttentuneRegressor

NUMBERS = "X holds numbers, which are refused: texts are expected"
OTHER_MESSAGE = "expects a message about columns or numbers; the one that texts are expected comes first"
NO_REPETITION = "a weight scales a row's loss; it does not repeat the row, which also changes steps and word counts"
SCORES = "task_type=None takes numbers with fractions as scores to predict, so they are no wrong classes"

# Older releases take no xfail_strict; there, a check of these that passes is no error.
STRICT = {"xfail_strict": True} if "xfail_strict" in inspect.signature(parametrize_with_checks).parameters else {}
# The checks that cannot pass, with the reason.
EXPECTED = {
    **dict.fromkeys(
        [
            "check_classifier_data_not_an_array",
            "check_classifiers_classes",
            "check_classifiers_one_label_sample_weights",
            "check_classifiers_train",
            "check_dict_unchanged",
            "check_dont_overwrite_parameters",
            "check_dtype_object",
            "check_estimators_dtypes",
            "check_estimators_fit_returns_self",
            "check_estimators_overwrite_params",
            "check_estimators_pickle",
            "check_f_contiguous_array_estimator",
            "check_fit2d_predict1d",
            "check_fit_check_is_fitted",
            "check_fit_idempotent",
            "check_fit_score_takes_y",
            "check_methods_sample_order_invariance",
            "check_methods_subset_invariance",
            "check_n_features_in",
            "check_n_features_in_after_fitting",
            "check_pipeline_consistency",
            "check_readonly_memmap_input",
            "check_regressor_data_not_an_array",
            "check_regressors_int",
            "check_regressors_no_decision_function",
            "check_regressors_train",
            "check_sample_weight_equivalence_on_dense_data",
            "check_sample_weights_list",
            "check_sample_weights_not_an_array",
            "check_sample_weights_not_overwritten",
            "check_sample_weights_pandas_series",
            "check_sample_weights_shape",
            "check_supervised_y_2d",
        ],
        NUMBERS,
    ),
    **dict.fromkeys(
        [
            "check_all_zero_sample_weights_error",
            "check_estimators_empty_data_messages",
            "check_estimators_nan_inf",
            "check_fit2d_1feature",
            "check_positive_only_tag_during_fit",
        ],
        OTHER_MESSAGE,
    ),
}
# Those that only some estimators fail.
OF_ONE = {
    "AttentuneRegressor": {"check_fit2d_1sample": OTHER_MESSAGE},
    "AttentuneAuto": {"check_classifiers_regression_target": SCORES},
}


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


class WordAuto(NumbersAsWords, AttentuneAuto):
    pass


def cannot_pass(estimator: Any) -> dict[str, str]:
    return {**EXPECTED, **OF_ONE.get(type(estimator).__name__, {})}


@pytest.mark.integration
@parametrize_with_checks(
    [AttentuneClassifier(), AttentuneRegressor(), AttentuneAuto()],
    expected_failed_checks=cannot_pass,
    **STRICT,
)
def test_checks(estimator, check):
    check(estimator)


def cannot_pass_in_words(estimator: Any) -> dict[str, str]:
    more = OF_ONE["AttentuneAuto"] if isinstance(estimator, AttentuneAuto) else {}
    return {"check_sample_weight_equivalence_on_dense_data": NO_REPETITION, **more}


@pytest.mark.integration
@parametrize_with_checks(
    [WordClassifier(preset="tfidf-linear"), WordRegressor(preset="tfidf-linear")],
    expected_failed_checks=cannot_pass_in_words,
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
