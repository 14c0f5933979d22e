"""The first-order estimate of what masking a token does to the loss, and the labels made of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from attentune.token_labels.base import LabelSource
from helpers.label_references import answer, is_right, labels_of_scores, ordinary, rise_scores, row_loss
from helpers.label_sources import KINDS, RecordingScorer, Tiny, generator, observe_rows, tiny_source

ROWS = np.arange(20)


def loop_labels(source: LabelSource, rows: np.ndarray, *, soft: bool) -> np.ndarray:
    values = np.full(len(source.features.ids), -1.0)
    for row in map(int, rows):
        if is_right(source, row, answer(source, row)):
            values[source.features.row(row)] = labels_of_scores(
                rise_scores(source, row), ordinary(source, row), soft=soft
            )
    return values


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_labels_are_those_of_the_loop(tiny: Tiny, kind: str) -> None:
    source = tiny_source(tiny(), kind)
    hard, soft = (generator("gradient", source, targets=targets) for targets in ("hard", "soft"))
    for maker in (hard, soft):
        observe_rows(maker, ROWS)
    scores = np.concatenate([rise_scores(source, row) for row in range(20)])
    assert hard.tensors()["gradient_scores"] == pytest.approx(scores, abs=1e-5, rel=1e-4)
    assert scores.max() > 0.05
    assert scores.min() < -0.05
    made, softly = hard.plan(1), soft.plan(1)
    assert np.array_equal(made.token_labels.values, loop_labels(source, ROWS, soft=False))
    assert softly.token_labels.values == pytest.approx(loop_labels(source, ROWS, soft=True), abs=1e-5)
    assert made.facts["probed"] == 20
    assert made.facts["correct"] == 15
    assert made.facts["ones"] > 10
    assert made.facts["zeros"] > 10


def test_batches_and_the_losss_denominator_change_no_label(tiny: Tiny) -> None:
    source = tiny_source(tiny())
    plans = []
    for rows, batch_rows, factor in ((ROWS, 1, 1.0), (ROWS[::-1], 7, 1.0), (ROWS, 20, 0.125)):
        maker = generator("gradient", source, targets="soft")
        observe_rows(maker, rows, batch_rows=batch_rows, factor=factor)
        plans.append(maker.plan(1).token_labels.values)
    assert plans[1] == pytest.approx(plans[0], abs=1e-5)
    assert plans[2] == pytest.approx(plans[0], abs=1e-5)


def test_where_masking_moves_a_token_little_the_estimate_is_the_rise_itself(tiny: Tiny) -> None:
    # A first-order estimate is exact in the limit of small steps. All word embeddings are therefore drawn near to the
    # mask token's; left as they are, the layer norms alone bend the way to it so much that ranks need not agree.
    source = tiny_source(tiny())
    words = source.scorer.model.get_input_embeddings().weight
    with torch.no_grad():
        words.copy_(words[source.mask_token_id] + 0.02 * (words - words[source.mask_token_id]))
    maker = generator("gradient", source)
    observe_rows(maker, ROWS)
    scores = maker.tensors()["gradient_scores"]
    estimates, rises = [], []
    for row in range(20):
        before = float(row_loss(source, row, answer(source, row)))
        for place in ordinary(source, row):
            estimates.append(scores[source.features.starts[row] + place])
            rises.append(float(row_loss(source, row, answer(source, row, [place]))) - before)
    assert spearmanr(estimates, rises).statistic > 0.95
    assert np.polyfit(estimates, rises, 1)[0] == pytest.approx(1.0, abs=0.1)


def test_only_what_was_seen_since_the_last_plan_is_labelled(tiny: Tiny) -> None:
    source = tiny_source(tiny())
    maker = generator("gradient", source)
    observe_rows(maker, ROWS[:9])
    made = maker.plan(1)
    assert np.array_equal(made.token_labels.values, loop_labels(source, ROWS[:9], soft=False))
    assert made.facts["probed"] == 9
    nothing = maker.plan(2)
    assert nothing.token_labels is None
    assert nothing.facts["probed"] == 0
    assert nothing.facts["reason"].startswith("no sentence was probed")
    observe_rows(maker, ROWS[9:])
    later = maker.plan(3).token_labels.values
    assert np.array_equal(later, loop_labels(source, ROWS[9:], soft=False))


def test_an_overflowed_gradient_says_nothing(tiny: Tiny) -> None:
    source = tiny_source(tiny())
    maker = generator("gradient", source, targets="soft")
    observe_rows(maker, ROWS, factor=float("nan"))
    assert (maker.tensors()["gradient_scores"] == 0).all()
    made = maker.plan(1)
    assert made.facts["ones"] == 0
    assert set(made.token_labels.values.tolist()) == {-1.0, 0.0}


def test_what_was_seen_goes_through_a_checkpoint(tiny: Tiny) -> None:
    source = tiny_source(tiny())
    first, second = generator("gradient", source), generator("gradient", source)
    observe_rows(first, ROWS[:10])
    observe_rows(second, ROWS[15:])  # must be forgotten
    tensors = first.tensors()
    kept = {name: values.copy() for name, values in tensors.items()}
    second.restore(tensors)
    observe_rows(second, ROWS[10:15])
    assert all(np.array_equal(tensors[name], kept[name]) for name in kept)  # not changed through the restored one
    made = second.plan(1)
    assert np.array_equal(made.token_labels.values, loop_labels(source, ROWS[:15], soft=False))
    assert made.facts["probed"] == 15


def test_of_several_processes_one_takes_what_was_saved(tiny: Tiny) -> None:
    source = tiny_source(tiny())
    whole = generator("gradient", source)
    observe_rows(whole, ROWS)
    saved = whole.tensors()
    parts = []
    for process in range(2):
        scorer = RecordingScorer(source.scorer)
        scorer.part = slice(process, None, 2)
        maker = generator("gradient", replace(source, scorer=scorer))
        observe_rows(maker, ROWS[15:])  # must be forgotten
        maker.restore(saved)
        parts.append(maker.tensors())
    for name, values in saved.items():
        assert values.any()
        assert np.array_equal(parts[0][name] + parts[1][name], values)
