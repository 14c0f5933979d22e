"""One run whose methods are measured."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attentune.explain.scorer import Settings
from attentune.inference.predictor import Predictor
from attentune_lab.faithfulness.measure import FaithfulnessResult, Measures, measure_faithfulness
from helpers.tiny_runs import rows_for, tiny_run


@pytest.fixture(scope="session")
def quick() -> Measures:
    return Measures(settings=Settings(steps=4), draws=3, beam=2, beam_tokens=6)


@pytest.fixture(scope="module")
def run(tiny: Callable[..., Path]) -> Predictor:
    return tiny_run(tiny())


@pytest.fixture(scope="module")
def found(run: Predictor, quick: Measures) -> FaithfulnessResult:
    methods = ("leave-one-out", "gradient", "ssa")
    return measure_faithfulness(run, rows_for("classification"), methods=methods, measures=quick)
