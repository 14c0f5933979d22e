"""Labels over every family of encoders, with its own head and embeddings, are those of the plain loop."""

import numpy as np
import pytest

from attentune.config import HeadConfig, TokenGateConfig
from helpers.label_references import answer, is_right, labels_of_scores, ordinary, probing_labels, rise_scores
from helpers.label_sources import Tiny, generator, observe_rows, tiny_source
from helpers.tiny import FAMILIES

every_family = pytest.mark.parametrize("family", FAMILIES)


@every_family
def test_flip_is_the_loop(tiny: Tiny, family: str) -> None:
    source = tiny_source(tiny(family), rows=16, head=HeadConfig())
    made = generator("flip", source, mask_share=0.5).plan(1)
    expected, facts = probing_labels(source, 1, mask_share=0.5)
    assert 0 < facts["flipped"] < facts["correct"] == 12
    assert np.array_equal(made.token_labels.values, expected)
    assert {name: made.facts[name] for name in ("probed", "correct", "flipped")} == facts


@every_family
def test_gradient_is_the_loop(tiny: Tiny, family: str) -> None:
    source = tiny_source(tiny(family), rows=8, head=HeadConfig(), token_gate=TokenGateConfig(kind="ssa"))
    maker = generator("gradient", source, targets="soft")
    observe_rows(maker, np.arange(8))
    scores = [rise_scores(source, row) for row in range(8)]
    together = np.concatenate(scores)
    assert np.abs(together).max() > 0.01
    assert maker.tensors()["gradient_scores"] == pytest.approx(together, abs=2e-5, rel=1e-4)
    made = maker.plan(1)
    assert made.facts["correct"] == 6
    for row in range(8):
        expected = np.full(len(scores[row]), -1.0)
        if is_right(source, row, answer(source, row)):
            expected = labels_of_scores(scores[row], ordinary(source, row), soft=True)
        assert made.token_labels.sample(row) == pytest.approx(expected, abs=1e-4)
