"""The label generator `released`: its spans, its samples, and how kept ones and originals are labelled."""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from attentune.config import LabelsConfig
from attentune.errors import ConfigError
from attentune.inference.scoring import score_rows
from attentune.seeding import numpy_generator
from attentune.token_labels import base
from attentune.token_labels.base import LabelSource
from attentune.token_labels.plan import EpochPlan
from attentune_lab.released_ssa import labels as module
from attentune_lab.released_ssa.labels import ReleasedLabels, random_spans
from helpers.interrupted import die_after_step, run
from helpers.label_references import answer, is_right, is_same
from helpers.label_sources import Tiny, bag_answer, bag_source, features_of, tiny_source, watched
from helpers.tiers import leading


def released(source: LabelSource, *, shuffle: bool = False, **options: Any) -> ReleasedLabels:
    return ReleasedLabels(LabelsConfig("attentune-lab/released", shuffle=shuffle, options=options), source)


# Reference implementations: plain loops


def released_spans(
    length: int, random: np.random.RandomState, *, chance: float = 0.1, longest: float = 0.7
) -> set[int]:
    """Mask a text of `length` tokens as the released program does, one token after another."""
    cut_1, cut_2, cut_3 = (np.percentile(np.arange(length), share) for share in (25, 50, 75))
    masked: set[int] = set()
    for token in range(length):
        if random.rand() > chance:
            continue
        if token < cut_1:
            start, end = 0.0, cut_1
        elif token < cut_2:
            start, end = cut_1, cut_2
        elif token < cut_3:
            start, end = cut_2, cut_3
        else:
            start, end = cut_3, float(length)
        if end - start <= 1:
            continue
        last, p = random.randint(int(start), int(end)), random.rand()
        if p > longest and last >= start + 2:
            masked |= {last, last - 1, last - 2}
        elif 2 * longest - 1 < p < longest and last >= start + 1:
            masked |= {last, last - 1}
        else:
            masked |= {last}
    return masked


def released_shares(each: float, epochs: int) -> list[float]:
    """Return the share of kept samples by epoch: it rises while the next value is below 1."""
    shares, share = [], 0.0
    for _ in range(epochs):
        shares.append(share)
        if share + each < 1.0:
            share += each
    return shares


def released_pool(source: LabelSource, epoch: int, *, wanted: int, ask: Any = answer) -> list[tuple[int, list[int]]]:
    """Return the pool of kept samples, rows with their masked positions, testing one row after another."""
    pool: list[tuple[int, list[int]]] = []
    for number in range(20):
        if len(pool) >= wanted:
            break
        for row in range(len(source.features)):
            plain_C = ask(source, row)
            if not is_right(source, row, plain_C):
                continue
            key = (source.seed, epoch, row) if number == 0 else (source.seed, epoch, row, number)
            places = random_spans(source.features, row, chance=0.1, rm_threshold=0.7, key=key).tolist()
            if is_same(source, plain_C, ask(source, row, places)) and (row, places) not in pool:
                pool.append((row, places))
    return pool


def released_samples(source: LabelSource, epoch: int, *, wanted: int, **options: Any) -> list[tuple[int, list[int]]]:
    """Return the kept samples of an epoch: a draw from the pool, in the pool's order."""
    pool = released_pool(source, epoch, wanted=wanted, **options)
    drawn = numpy_generator("kept samples", source.seed, epoch).permutation(len(pool))[:wanted]
    return [pool[place] for place in sorted(drawn)]


# Random spans as the released program draws them: in quarters of each text, of one to three tokens


class Scripted:
    """Gives these arrays one after the other in place of random numbers."""

    def __init__(self, *draws: list[float]) -> None:
        self._draws = list(draws)

    def random(self, size: int) -> np.ndarray:
        drawn = np.array(self._draws.pop(0), dtype=float)
        assert len(drawn) == size
        return drawn


def spans_by_hand(
    row: str, starting: dict[int, tuple[float, float]], *, chance: float = 0.1, rm_threshold: float = 0.7
) -> list[int]:
    """The masked places if these words start spans, each with (where in the quarter, p of the length)."""
    count = row.count("o")
    script = Scripted(
        [chance / 2 if token in starting else chance for token in range(count)],
        [starting[token][0] for token in sorted(starting)],
        [starting[token][1] for token in sorted(starting)],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "numpy_generator", lambda *key: script)
        return random_spans(features_of(row), 0, chance=chance, rm_threshold=rm_threshold, key=(1,)).tolist()


SEVENTEEN = "s" + "o" * 17 + "s"  # quarters of the tokens begin at 0, 4, 8 and 12, at the places 1, 5, 9 and 13


@pytest.mark.parametrize(
    ("starting", "places"),
    [
        ({}, []),
        ({4: (0.75, 0.71)}, [6, 7, 8]),  # the second quarter's last token and two to its left
        ({7: (0.99, 0.69)}, [7, 8]),  # wherever in the quarter it started
        ({7: (0.99, 0.70)}, [8]),  # 0.7 itself is neither above nor below
        ({5: (0.99, 0.41)}, [7, 8]),
        ({5: (0.99, 0.39)}, [8]),
        ({5: (0.99, 0.0)}, [8]),
        ({5: (0.0, 0.99)}, [5]),  # too near to the quarter's start: one token, not a cut span
        ({5: (0.26, 0.99)}, [6]),
        ({5: (0.26, 0.5)}, [5, 6]),
        ({16: (0.99, 0.99)}, [15, 16, 17]),  # the last quarter has the last token
        ({0: (0.75, 0.9), 1: (0.5, 0.1), 16: (0.0, 0.5)}, [2, 3, 4, 13]),  # overlapping spans are one
    ],
)
def test_spans_by_hand(starting: dict[int, tuple[float, float]], places: list[int]) -> None:
    assert spans_by_hand(SEVENTEEN, starting) == places


def test_the_threshold_sets_the_lengths() -> None:
    lengths = [len(spans_by_hand(SEVENTEEN, {8: (0.99, p)}, rm_threshold=0.9)) for p in (0.91, 0.9, 0.81, 0.8, 0.1)]
    assert lengths == [3, 1, 2, 1, 1]


def test_each_text_of_a_pair_has_quarters_of_its_own() -> None:
    row = "s" + "o" * 9 + "s" + "o" * 17 + "s"  # texts at 1 to 9 and 11 to 27
    assert spans_by_hand(row, {8: (0.99, 0.99)}) == [7, 8, 9]
    assert spans_by_hand(row, {9: (0.99, 0.99)}) == [12, 13, 14]  # the second text's first token
    assert spans_by_hand(row, {25: (0.99, 0.99)}) == [25, 26, 27]


@given(st.text("so", min_size=1, max_size=40), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**40))
def test_spans_are_ordinary_tokens_and_a_function_of_the_key(row, chance, rm_threshold, seed):
    features = features_of("ooss", row, "so")
    places = random_spans(features, 1, chance=chance, rm_threshold=rm_threshold, key=(seed, 1))
    assert places.tolist() == sorted(set(places.tolist()))
    assert {row[place] for place in places} <= {"o"}
    alone = random_spans(features_of(row), 0, chance=chance, rm_threshold=rm_threshold, key=(seed, 1))
    assert np.array_equal(places, alone)
    assert chance > 0 or len(places) == 0
    assert chance < 1 or len(places) > 0 or max(map(len, row.split("s"))) <= 1


@leading("length, mean", [(24, 3.45), (4, 0.10), (12, 1.34)])
def test_draws_are_distributed_as_those_of_a_plain_loop(length: int, mean: float) -> None:
    check_distribution(length, mean, draws=4_000)


def check_distribution(length: int, mean: float, *, draws: int) -> None:
    """Numbers of masked tokens and their positions: means and shares within five standard errors of each other."""
    features, random = features_of("o" * length), np.random.RandomState(1)
    ours, theirs = np.zeros((2, draws, length), dtype=bool)
    for seed in range(draws):
        ours[seed, random_spans(features, 0, chance=0.1, rm_threshold=0.7, key=(seed, 1))] = True
        theirs[seed, sorted(released_spans(length, random))] = True
    counts = [part.sum(axis=1) for part in (ours, theirs)]
    error = np.hypot(*(part.std() for part in counts)) / np.sqrt(draws)
    assert counts[0].mean() == pytest.approx(mean, abs=0.01 + 5 * error)
    assert counts[0].mean() == pytest.approx(counts[1].mean(), abs=5 * error)
    for first, second in ((ours, theirs), *(tuple(one[:, None] == n for one in counts) for n in range(7))):
        share_P = (first.mean(axis=0) + second.mean(axis=0)) / 2
        errors_P = np.sqrt(2 * share_P * (1 - share_P) / draws)
        assert (np.abs(first.mean(axis=0) - second.mean(axis=0)) <= 5 * errors_P + 1e-9).all()


# Samples


def zeros_of(made: EpochPlan, number: int) -> list[int]:
    return np.flatnonzero(made.token_labels.sample(number) == 0).tolist()


def originals_of(made: EpochPlan, source: LabelSource, begin: int) -> list[int]:
    """The rows of the samples from `begin` on, after a check that they are labelled as originals."""
    for number in range(begin, len(made)):
        special = source.features.special[source.features.row(int(made.rows[number]))]
        assert made.token_labels.sample(number).tolist() == np.where(special, -1.0, 1.0).tolist()
    return made.rows[begin:].tolist()


@pytest.mark.parametrize(
    ("each", "shares"),
    [
        (0.2, [0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8]),
        (0.3, [0, 0.3, 0.6, 0.9, 0.9]),
        (0.5, [0, 0.5, 0.5]),
        (1.0, [0, 0, 0]),
        (0.0, [0, 0]),
    ],
)
@pytest.mark.parametrize("double", [False, True])
def test_the_share_of_kept_samples_rises_while_it_stays_below_one(each, shares, double):
    source = bag_source(200, length=40, wrong_share=0.0)
    maker = released(source, aug_ratio_each=each, double_ori=double)
    assert shares == pytest.approx(released_shares(each, len(shares)))
    for epoch, share in enumerate(released_shares(each, len(shares))):
        made = maker.plan(epoch)
        assert len(made) == maker.samples_in_epoch(epoch) == (400 if double and share > 0 else 200)
        kept = int(share * 200)
        if kept:
            assert (made.facts["kept"], made.facts["missing"]) == (kept, 0)
        rest = originals_of(made, source, kept)
        first = rest[: 200 - kept]
        assert len(set(first)) == len(first) == 200 - kept
        assert rest[200 - kept :] == (list(range(200)) if double and share > 0 else [])
        assert made.masked is None  # the text is trained on as it is


def test_epoch_zero_is_the_originals_and_asks_nothing() -> None:
    source, scorer = watched(bag_source(30))
    made = released(source).plan(0)
    assert sorted(originals_of(made, source, 0)) == list(range(30))
    assert not scorer.masked
    assert not scorer.plain
    ordinary = int((~source.features.special).sum())
    assert made.facts == {"probed": 0, "correct": 0, "flipped": 0, "ones": ordinary, "zeros": 0}


def test_what_is_kept_is_right_and_outlives_masking_and_zeros_are_the_masks() -> None:
    source = bag_source(300)
    made = released(source, aug_ratio_each=0.5).plan(1)
    loop = released_samples(source, 1, wanted=150, ask=bag_answer)
    assert [(int(row), zeros_of(made, number)) for number, row in enumerate(made.rows[:150])] == loop
    for row, places in loop:
        plain, masked = bag_answer(source, row), bag_answer(source, row, places)
        assert plain.argmax() == masked.argmax() == source.gold[row]
    assert made.facts["flipped"] > 0
    assert made.facts["correct"] < made.facts["probed"]
    assert Counter(made.token_labels.values.tolist()).keys() == {-1.0, 0.0, 1.0}


def test_passes_go_on_with_new_masks_until_there_are_enough() -> None:
    source = bag_source(100, length=40, wrong_share=0.5)
    made = released(source, aug_ratio_each=0.8).plan(1)
    pool = released_pool(source, 1, wanted=80, ask=bag_answer)
    facts = made.facts
    assert (facts["kept"], facts["missing"]) == (80, 0)
    assert facts["passes"] > 1
    assert 0 < facts["kept_share"] <= 1
    lengths = source.features.lengths - 2
    means = (lengths[made.rows[:80]].mean(), lengths.mean())
    assert (facts["kept_tokens"], facts["row_tokens"]) == pytest.approx(means, abs=0.01)
    assert facts["pool"] == len(pool) >= 80
    rows = made.rows[:80].tolist()
    assert len(set(rows)) < 80  # a sentence can be there with several masks
    samples = [(row, tuple(zeros_of(made, number))) for number, row in enumerate(rows)]
    assert len(set(samples)) == 80
    assert len(originals_of(made, source, 80)) == 20


def test_where_a_pass_limit_is_reached_originals_fill_up() -> None:
    source = bag_source(40, length=3, wrong_share=0.8)  # such short texts have hardly any masks
    made = released(source, aug_ratio_each=0.9).plan(1)
    pool = released_pool(source, 1, wanted=36, ask=bag_answer)
    assert len(pool) < 36
    assert (made.facts["passes"], made.facts["kept"], made.facts["missing"]) == (20, len(pool), 36 - len(pool))
    assert len(originals_of(made, source, len(pool))) == 40 - len(pool)


def test_no_sample_is_kept_of_a_model_that_is_always_wrong() -> None:
    source = bag_source(20, wrong_share=1.0)
    made = released(source, aug_ratio_each=0.5).plan(1)
    assert made.facts["correct"] == 0
    assert sorted(originals_of(made, source, 0)) == list(range(20))


def test_kept_samples_masks_and_originals_differ_between_epochs_and_seeds() -> None:
    source = bag_source(100)
    first = released(source, aug_ratio_each=0.2).plan(2)
    again = released(source, aug_ratio_each=0.2).plan(2)
    assert np.array_equal(first.rows, again.rows)
    assert np.array_equal(first.token_labels.values, again.token_labels.values)
    # Another share an epoch keeps the number: only the epoch's own draws differ.
    epoch = released(source, aug_ratio_each=0.4).plan(1)
    seed = released(replace(source, seed=8), aug_ratio_each=0.2).plan(2)
    masks = {row: zeros_of(first, number) for number, row in enumerate(first.rows[:40].tolist())}
    for other in (epoch, seed):
        assert set(other.rows[:40].tolist()) != set(first.rows[:40].tolist())
        assert set(other.rows[40:].tolist()) != set(first.rows[40:].tolist())
        shared = [(number, row) for number, row in enumerate(other.rows[:40].tolist()) if row in masks]
        assert len(shared) > 5
        assert any(zeros_of(other, number) != masks[row] for number, row in shared)


def test_a_score_is_kept_where_it_is_right_and_masking_hardly_moves_it(tiny: Tiny) -> None:
    source = tiny_source(tiny("bert"), "regression", rows=20)
    source = replace(source, comparator=replace(source.comparator, tolerance=0.2))
    made = released(source, aug_ratio_each=0.5).plan(1)
    loop = released_samples(source, 1, wanted=10)
    assert made.facts["correct"] == 15
    assert [(int(row), zeros_of(made, number)) for number, row in enumerate(made.rows[: len(loop)])] == loop
    assert made.facts["flipped"] > 0


def test_released_keeps_what_the_loop_keeps(tiny: Tiny) -> None:
    source = tiny_source(tiny(), "pair", rows=40)
    made = released(source, aug_ratio_each=0.2).plan(2)
    kept = released_samples(source, 2, wanted=16)
    assert made.rows[:16].tolist() == [row for row, _ in kept]
    assert 0 < made.facts["flipped"] < made.facts["correct"] < made.facts["probed"]
    for number, (row, places) in enumerate(kept):
        expected = np.where(source.features.special[source.features.row(row)], -1.0, 1.0)
        expected[places] = 0.0
        assert made.token_labels.sample(number).tolist() == expected.tolist()
    assert sum(len(places) for _, places in kept) > 10


def test_a_key_stands_for_the_same_spans_in_every_version() -> None:
    features = features_of("s" + "o" * 20 + "s")
    spans = random_spans(features, 0, chance=0.2, rm_threshold=0.7, key=(42, 1, 0))
    assert spans.tolist() == [2, 3, 4, 6, 17, 20]


def test_shuffled_labels_are_the_same_ones_elsewhere() -> None:
    source = bag_source(60)
    usual, mixed = (released(source, shuffle=shuffle, aug_ratio_each=0.5).plan(1) for shuffle in (False, True))
    values, dealt = usual.token_labels.values, mixed.token_labels.values
    assert sorted(dealt.tolist()) == sorted(values.tolist())
    assert (dealt != values).sum() > 20
    assert np.array_equal(mixed.rows, usual.rows)


@pytest.mark.parametrize("name", ["budget", "global generators", "training"])
def test_labels_depend_on_weights_seed_epoch_and_row_alone(tiny: Tiny, name: str, monkeypatch) -> None:
    source = tiny_source(tiny(), rows=24)
    usual = released(source, aug_ratio_each=0.3).plan(2)
    if name == "budget":
        one_by_one = partial(score_rows, batch_tokens=1)
        monkeypatch.setattr(base, "score_rows", one_by_one)
    elif name == "training":
        source.scorer.model.train()
    else:
        torch.manual_seed(1)
        np.random.seed(1)
    again = released(source, aug_ratio_each=0.3).plan(2)
    assert np.array_equal(again.rows, usual.rows)
    assert np.array_equal(again.token_labels.values, usual.token_labels.values)
    assert len(np.unique(usual.token_labels.values)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aug_threshold": 7}, "labels.options.aug_threshold: got 7, expected"),
        ({"double": True}, "labels.options.double: there is no such setting. Did you mean 'double_ori'"),
    ],
)
def test_other_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        released(bag_source(3), **options)


@pytest.mark.integration
@pytest.mark.parametrize("step", [5, 10, 13])
def test_a_run_killed_after_a_step_ends_as_one_that_was_not(tiny: Tiny, tmp_path: Path, step: int) -> None:
    changes: dict[str, Any] = {
        "preset": "ssa-co-released",
        "labels__options": {"aug_ratio_each": 0.4, "aug_threshold": 0.3},
        "training__num_train_epochs": 3,
        "training__learning_rate": 3e-4,
        "training__save_steps": 4,
        "training__seed": 2,
    }
    encoder = tiny("bert")
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    run(tmp_path / "whole", encoder, **changes)
    die_after_step(step, lambda: run(tmp_path / "killed", encoder, **changes))
    assert not (tmp_path / "killed/run/run.json").exists()
    run(tmp_path / "killed", encoder, **changes, training__resume=True)
    for file in ("model.safetensors", "labels.safetensors"):
        whole, killed = (load_file(tmp_path / name / "run" / file) for name in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert all(np.array_equal(whole[key], killed[key]) for key in whole)
