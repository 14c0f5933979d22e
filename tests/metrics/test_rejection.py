"""Scores of belonging to a class, each against its formula in loops; the threshold, and what it keeps and loses."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError, DataError
from attentune.metrics.rejection import (
    ClassMeans,
    Rejection,
    energy,
    energy_weights,
    fit_rejection,
    maximum_probability,
    rejection_scores,
    separation,
    threshold_for,
)

RNG = np.random.default_rng(0)


def test_energy_and_maximum_probability_by_loops() -> None:
    logits_NC = 3 * RNG.normal(size=(20, 4)).astype(np.float32)
    log_shares_NC = np.log([np.exp(row) / sum(np.exp(row)) for row in logits_NC.astype(float)])
    highest_N = maximum_probability(logits_NC, LabelSpace("classification", tuple("abcd")))
    for row, found, same, highest in zip(
        logits_NC.tolist(), energy(logits_NC), energy(log_shares_NC), highest_N, strict=True
    ):
        total = sum(math.exp(value) for value in row)
        assert found == pytest.approx(math.log(total) - sum(row) / 4, rel=1e-9)
        assert same == pytest.approx(found, rel=1e-9)  # as baselines have them
        assert highest == pytest.approx(math.exp(max(row)) / total, rel=1e-9)


def test_members_energies_are_weighed_in_units_of_their_deviations(tmp_path: Path) -> None:
    energies_NM = RNG.normal(size=(9, 2)) * (2, 30)
    weights = energy_weights(energies_NM, (0.7, 0.3))
    for column, share in enumerate((0.7, 0.3)):
        values = energies_NM[:, column].tolist()
        mean = sum(values) / 9
        assert weights[column] == pytest.approx(share / math.sqrt(sum((one - mean) ** 2 for one in values) / 9))
    made = Rejection("energy", 1.0, 0.05, 9, 0.0, weights=weights)
    made.save(tmp_path)
    assert Rejection.load(tmp_path) == made
    assert "weighted log-sum-exp of the members' logits" in made.sentence()
    expected = [sum(w * e for w, e in zip(weights, row, strict=True)) for row in energies_NM.tolist()]
    space = LabelSpace("classification", tuple("abcd"))
    assert made.scores(np.zeros((9, 4)), energies_NM, space) == pytest.approx(expected)


def test_the_distance_is_mahalanobis_to_the_nearest_mean() -> None:
    labels = np.array([0, 0, 0, 3, 3, 3, 3, 5, 5, 5])  # ids without rows have no mean
    vectors_NF = RNG.normal(size=(10, 3)) + labels[:, None]
    means = {k: vectors_NF[labels == k].mean(axis=0) for k in (0, 3, 5)}
    covariance_FF, _ = ledoit_wolf(
        np.stack([vector - means[label] for vector, label in zip(vectors_NF, labels.tolist(), strict=True)]),
        assume_centered=True,
    )
    new_MF = RNG.normal(size=(6, 3)) * 4
    expected = []
    for vector in new_MF:
        distances = []
        for mean in means.values():
            off = vector - mean
            distances.append(float(off @ np.linalg.inv(covariance_FF) @ off))
        expected.append(-min(distances))
    assert ClassMeans.fit(vectors_NF, labels).scores(new_MF) == pytest.approx(expected, rel=1e-4)


def test_classes_of_one_row_have_a_distance_too() -> None:
    means = ClassMeans.fit(np.eye(3, dtype=np.float32), np.arange(3))
    assert means.scores(np.array([[1.0, 0, 0], [0, 3, 0]])) == pytest.approx([0, -4], abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "share", "lost"),
    [(100, 0.05, 4), (99, 0.05, 4), (19, 0.05, 0), (18, 0.05, 0), (200, 0.1, 19), (1, 0.5, 0), (3, 0.5, 1)],
)
def test_the_threshold_loses_at_most_the_share(rows: int, share: float, lost: int) -> None:
    scores_N = RNG.permutation(rows).astype(float)
    assert (scores_N < threshold_for(scores_N, share)).sum() == lost


@pytest.mark.parametrize(("least", "share"), [(19, 0.05), (9, 0.1), (3, 0.3), (1, 0.5)])
def test_too_few_right_predictions_are_told(least: int, share: float) -> None:
    for rows in (least, least - 1):
        if rows:
            told = fit_rejection({"energy": np.arange(float(rows))}, np.ones(rows, bool), share).sentence()
            assert (f"too few for the {share:.1%} wanted: that needs {least}." in told) == (rows < least)
    few = Rejection("energy", 1.0, 0.05, 8, 0.0).sentence()
    assert "rejected as of no class: only scores below those of all 8 right predictions" in few
    assert "Of new right predictions 11.1% will be rejected on average." in few


def test_new_rows_lose_at_most_the_share_on_average() -> None:
    losses = []
    for _ in range(2000):
        old, new = RNG.normal(size=59), RNG.normal(size=50)
        losses.append((new < threshold_for(old, 0.1)).mean())
    assert np.mean(losses) == pytest.approx(0.1, abs=0.004)  # the standard error is 0.0013


def test_texts_of_no_class_choose_the_score() -> None:
    right_N = np.array([True, True, False, True])
    known = {"energy": np.array([1.0, 2, 3, 4]), "probability": np.array([0.9, 0.8, 0.7, 0.6])}
    unknown = {"energy": np.array([2.5, 3.5]), "probability": np.array([0.1, 0.65])}
    assert fit_rejection(known, right_N, 0.5).score == "energy"
    chosen = fit_rejection(known, right_N, 0.5, unknown)
    assert (chosen.score, chosen.auroc) == ("probability", {"energy": 0.375, "probability": 0.875})
    assert (chosen.threshold, chosen.rows, chosen.lost) == (0.8, 3, pytest.approx(1 / 3))
    with pytest.raises(DataError, match="None of 4 held-out rows"):
        fit_rejection(known, ~np.ones(4, dtype=bool), 0.5)


def test_separation_and_what_a_threshold_keeps_by_loops() -> None:
    known_N, unknown_N = RNG.normal(size=40).round(1) + 1, RNG.normal(size=30).round(1)
    wins = sum((a > b) + 0.5 * (a == b) for a in known_N for b in unknown_N)
    at_95 = max(t for t in known_N if sum(one >= t for one in known_N) >= 0.95 * 40)
    found = separation(known_N, unknown_N)
    assert found["auroc"] == pytest.approx(wins / 1200)
    assert found["false_positives_at_95_recall"] == pytest.approx(sum(one >= at_95 for one in unknown_N) / 30)
    right_N = RNG.random(40) < 0.7
    kept = [row for row in range(40) if known_N[row] >= 0.5]
    assert rejection_scores(known_N < 0.5, unknown_N < 0.5, right_N) == pytest.approx(
        {
            "kept": len(kept) / 40,
            "accuracy_of_kept": sum(right_N[row] for row in kept) / len(kept),
            "right_lost": sum(right_N[row] and row not in kept for row in range(40)) / right_N.sum(),
            "out_of_scope_rejected": sum(one < 0.5 for one in unknown_N) / 30,
        }
    )


def test_it_is_saved_and_refused_when_damaged(tmp_path: Path) -> None:
    means = ClassMeans.fit(RNG.normal(size=(9, 2)), np.arange(9) % 3)
    made = Rejection("distance", -3.5, 0.05, 9, 0.0, None, means)
    made.save(tmp_path)
    loaded = Rejection.load(tmp_path)
    assert loaded is not None
    assert replace(loaded, means=None) == replace(made, means=None)
    vectors_NF = RNG.normal(size=(5, 2))
    nothing = np.zeros((5, 3)), vectors_NF, LabelSpace("classification", tuple("abc"))
    assert loaded.scores(*nothing).tolist() == made.scores(*nothing).tolist()
    replace(made, score="energy", means=None).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rejection.json"]
    for content in ("{}", "[", '{"score": "luck", "threshold": 1, "share": 0.1, "rows": 1, "lost": 0}'):
        (tmp_path / "rejection.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"rejection\.json: .*--reject"):
            Rejection.load(tmp_path)
