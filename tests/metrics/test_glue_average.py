"""The GLUE average: each task once, WNLI as the majority class, AX left out."""

from __future__ import annotations

import math

import pytest

from attentune.metrics.metrics import GLUE_TASKS, glue_average, task_score

# BERT-base of the SESAME paper's table 1, with second metrics that are made up.
SCORES = {
    "cola": {"validation": {"matthews_correlation": 0.521}},
    "sst2": {"validation": {"accuracy": 0.935}},
    "mrpc": {"validation": {"f1": 0.889, "accuracy": 0.848}},
    "stsb": {"validation": {"pearson": 0.871, "spearmanr": 0.858}},
    "qqp": {"validation": {"f1": 0.712, "accuracy": 0.892}},
    "mnli": {"validation_matched": {"accuracy": 0.846}, "validation_mismatched": {"accuracy": 0.834}},
    "qnli": {"validation": {"accuracy": 0.905}},
    "rte": {"validation": {"accuracy": 0.664}},
}


def test_all_tasks_are_averaged_with_wnli_as_the_majority_class():
    found = glue_average({**SCORES, "wnli": {"validation": {"accuracy": 0.2}}, "ax": {"validation": {"accuracy": 0.3}}})
    by_hand = [0.521, 0.935, (0.889 + 0.848) / 2, (0.871 + 0.858) / 2, (0.712 + 0.892) / 2, 0.84, 0.905, 0.664, 0.651]
    assert found.value == pytest.approx(sum(by_hand) / 9)
    assert (found.name, found.is_complete, found.tasks) == ("GLUE average", True, GLUE_TASKS)


def test_without_some_tasks_it_says_what_is_averaged():
    found = glue_average({"rte": SCORES["rte"], "mnli": SCORES["mnli"], "reviews": {"validation": {"accuracy": 1.0}}})
    assert found.value == pytest.approx((0.664 + 0.84) / 2)
    assert (found.name, found.is_complete, found.tasks) == ("mean of 2 GLUE tasks", False, ("mnli", "rte"))
    assert glue_average({"rte": SCORES["rte"], "wnli": SCORES["rte"]}) is None


def test_only_validation_splits_count_and_undefined_scores_stay_undefined():
    assert task_score({"train": {"accuracy": 1.0}, "validation": {"accuracy": 0.5}, "test": {"accuracy": 0.0}}) == 0.5
    assert math.isnan(task_score({"test": {"accuracy": 0.5}}))
    found = glue_average({"rte": SCORES["rte"], "stsb": {"validation": {"pearson": None}}})
    assert math.isnan(found.value)
