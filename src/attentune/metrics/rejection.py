"""Texts that belong to no class: scores of belonging to one, the threshold below which a text is rejected, and what
the two are worth where texts of no class are known."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError, DataError
from attentune.io.files import read_json, write_bytes, write_text
from attentune.metrics.metrics import predictions_of, probabilities_of

# A run takes the first that it has, unless texts of no class decide: a model has all, with the rows that it was trained
# on; baselines and ensembles have no distance. results/reject has the measures.
SCORES = ("distance", "energy", "probability")
REJECTION_FILE, MEANS_FILE = "rejection.json", "rejection.safetensors"
# The columns and fields of predictions.
REJECTED, IN_SCOPE_SCORE = "rejected", "in_scope_score"


@dataclass(frozen=True)
class ClassMeans:
    """The means of the classes in the space of vectors in which the covariance within a class is the identity."""

    whitening_FF: np.ndarray  # maps vectors to that space
    means_CF: np.ndarray  # the means there, of the classes that have rows

    @classmethod
    def fit(cls, vectors_NF: np.ndarray, labels: np.ndarray) -> Self:
        """Fit the means and one covariance for all classes, shrunk as Ledoit and Wolf do.

        Source: Lee et al., "A simple unified framework for detecting out-of-distribution samples", NeurIPS 2018.
        """
        from sklearn.covariance import ledoit_wolf

        vectors_NF = vectors_NF.astype(np.float64)
        _, class_N = np.unique(labels, return_inverse=True)
        means_CF = np.stack([vectors_NF[class_N == k].mean(axis=0) for k in range(class_N.max() + 1)])
        covariance_FF, _ = ledoit_wolf(vectors_NF - means_CF[class_N], assume_centered=True)
        if np.trace(covariance_FF) <= 0:  # a row a class, or equal ones
            covariance_FF = np.eye(vectors_NF.shape[1])
        whitening_FF = np.linalg.cholesky(np.linalg.inv(covariance_FF))
        return cls(whitening_FF.astype(np.float32), (means_CF @ whitening_FF).astype(np.float32))

    def scores(self, vectors_NF: np.ndarray) -> np.ndarray:
        """Return (N,) minus the squared Mahalanobis distance of each vector to the nearest mean."""
        whitened_NF = vectors_NF.astype(np.float64) @ self.whitening_FF
        means_CF = self.means_CF.astype(np.float64)
        products_NC = whitened_NF @ means_CF.T
        return (2 * products_NC - (means_CF**2).sum(axis=1)).max(axis=1) - (whitened_NF**2).sum(axis=1)


def energy(logits_NC: np.ndarray) -> np.ndarray:
    """Return (N,) the log of the sum of the exponentials of the logits, each row's centred.

    Baselines return log-probabilities, whose own sum is 1; centred they are the logits that a softmax was taken of.

    Source: minus the energy of Liu et al., "Energy-based out-of-distribution detection", NeurIPS 2020.
    """
    from scipy.special import logsumexp  # imported late: mistakes are told without it

    logits_NC = logits_NC.astype(np.float64)
    return logsumexp(logits_NC, axis=1) - logits_NC.mean(axis=1)


def maximum_probability(logits_NC: np.ndarray, space: LabelSpace) -> np.ndarray:
    """Return (N,) the probability of the likeliest class."""
    return probabilities_of(logits_NC, space).max(axis=1)


def energy_weights(energies_NM: np.ndarray, shares: Sequence[float]) -> tuple[float, ...]:
    """Return the factors that give the standardised energies of an ensemble's members their shares."""
    return tuple((np.asarray(shares) / np.maximum(energies_NM.std(axis=0), 1e-9)).tolist())


def threshold_for(scores_right_N: np.ndarray, share: float) -> float:
    """Return the highest threshold below which at most this share of right predictions lies, on new rows on average.

    Of n + 1 exchangeable scores the new one is the k-th lowest or below with probability k / (n + 1). With fewer than
    1 / share - 1 rows no threshold is known to keep the promise; then none of these rows is rejected.
    """
    place = int(share * (len(scores_right_N) + 1) + 1e-9) - 1
    return float(np.sort(scores_right_N)[max(place, 0)])


@dataclass(frozen=True)
class Rejection:
    """When a run rejects a text: if its score lies below the threshold."""

    score: str  # one of `SCORES`
    threshold: float
    share: float  # the share of right predictions that may be lost
    rows: int  # the right predictions on held-out rows that chose the threshold
    lost: float  # the share of them that is lost
    auroc: Mapping[str, float] | None = None  # of each score that was tried, with the texts of no class that chose one
    means: ClassMeans | None = None  # for "distance"
    weights: tuple[float, ...] | None = None  # of the energies of an ensemble's members

    def scores(self, logits_NC: np.ndarray, vectors_NF: np.ndarray | None, space: LabelSpace) -> np.ndarray:
        """Return (N,) scores of belonging to a class; of an ensemble `vectors_NF` are its members' energies."""
        if self.means is not None and vectors_NF is not None:  # evaluators of runs with means keep vectors
            return self.means.scores(vectors_NF)
        if self.weights is not None and vectors_NF is not None:
            return vectors_NF @ np.array(self.weights)
        return energy(logits_NC) if self.score == "energy" else maximum_probability(logits_NC, space)

    def columns(self, scores_N: np.ndarray, is_empty_N: np.ndarray) -> dict[str, list[Any]]:
        """Return the columns of predictions; a text without words is rejected, whatever its score."""
        return {REJECTED: ((scores_N < self.threshold) | is_empty_N).tolist(), IN_SCOPE_SCORE: scores_N.tolist()}

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(replace(self, means=None)).items() if value is not None}

    def sentence(self) -> str:
        by = {"distance": "minus the squared distance to the nearest class mean", "energy": "log-sum-exp of the logits"}
        if self.weights is not None:
            by["energy"] = "a weighted log-sum-exp of the members' logits"
        chosen = ""
        if self.auroc is not None:
            listed = ", ".join(f"{name} {value:.4f}" for name, value in self.auroc.items())
            chosen = f" The score was chosen by texts of no class (AUROC: {listed})."
        cost = f"{self.lost:.1%} of {self.rows:,} right predictions on held-out rows (at most {self.share:.1%} wanted)."
        if self.rows < (needed := math.ceil(1 / self.share - 1 - 1e-9)):
            cost = (
                f"only scores below those of all {self.rows:,} right predictions on held-out rows, which are too few"
                f" for the {self.share:.1%} wanted: that needs {needed:,}. Of new right predictions"
                f" {1 / (self.rows + 1):.1%} will be rejected on average."
            )
        return (
            f"Texts with {by.get(self.score, 'a maximum probability')} below {self.threshold:.4g} are rejected as of no"
            f" class: {cost}{chosen}"
        )

    def save(self, folder: Path) -> None:
        """Write the files of a run folder; the numbers last, so that they never stand beside other means."""
        remove_rejection(folder)
        if self.means is not None:
            write_bytes(folder / MEANS_FILE, save(vars(self.means)))
        write_text(folder / REJECTION_FILE, json.dumps(self.facts(), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read the files of a run folder, if it has some."""
        file = folder / REJECTION_FILE
        if not file.is_file():
            return None
        try:
            content = read_json(file)
            means = ClassMeans(**load_file(folder / MEANS_FILE)) if content["score"] == "distance" else None
            weights = None if content.get("weights") is None else tuple(map(float, content["weights"]))
            made = cls(**{**content, "weights": weights}, means=means)
            numbers = [made.threshold, made.share, made.rows, made.lost]
            if made.score not in SCORES or not all(type(one) in (int, float) for one in numbers):
                raise ValueError(f"got {content}")
        except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
            raise CheckpointError(
                f"{file}: does not say which texts are rejected: {error}. Use another copy, or write it anew: attentune"
                f" calibrate {folder} --reject"
            ) from error
        return made


def remove_rejection(folder: Path) -> None:
    for name in (REJECTION_FILE, MEANS_FILE):
        (folder / name).unlink(missing_ok=True)


def fit_rejection(
    known: Mapping[str, np.ndarray],
    right_N: np.ndarray,
    share: float,
    unknown: Mapping[str, np.ndarray] | None = None,
    means: ClassMeans | None = None,
    weights: tuple[float, ...] | None = None,
) -> Rejection:
    """Fit a threshold on held-out rows: of the first score, or of the best one against texts of no class."""
    if not right_N.any():
        raise DataError(f"None of {len(right_N)} held-out rows is predicted rightly, so no threshold can keep them.")
    auroc = None
    if unknown is not None:
        auroc = {name: separation(known[name], unknown[name])["auroc"] for name in known}
    name = next(iter(known)) if auroc is None else max(auroc, key=auroc.__getitem__)
    scores_N = known[name][right_N]
    threshold = threshold_for(scores_N, share)
    lost = float((scores_N < threshold).mean())
    weights, means = (weights if name == "energy" else None), (means if name == "distance" else None)
    return Rejection(name, threshold, share, len(scores_N), lost, auroc, means, weights)


def separation(known_N: np.ndarray, unknown_N: np.ndarray) -> dict[str, float]:
    """Say how well a score separates rows of the classes from texts of none, whatever the threshold."""
    from sklearn.metrics import roc_auc_score

    is_known = np.repeat([1, 0], [len(known_N), len(unknown_N)])
    at_95 = np.sort(known_N)[int(0.05 * len(known_N))]  # 95 % of the known rows have at least this score
    return {
        "auroc": float(roc_auc_score(is_known, np.concatenate([known_N, unknown_N]))),
        "false_positives_at_95_recall": float((unknown_N >= at_95).mean()),
    }


def rejection_scores(
    known_rejected_N: np.ndarray, unknown_rejected_N: np.ndarray, right_N: np.ndarray
) -> dict[str, float]:
    """Return the shares kept and lost, by which known and out-of-scope texts are rejected, and which are right."""
    kept_N = ~known_rejected_N
    return {
        "kept": float(kept_N.mean()),
        "accuracy_of_kept": float(right_N[kept_N].mean()) if kept_N.any() else float("nan"),
        "right_lost": float((~kept_N[right_N]).mean()) if right_N.any() else float("nan"),
        "out_of_scope_rejected": float(unknown_rejected_N.mean()),
    }


def is_right(logits_NC: np.ndarray, labels: np.ndarray, space: LabelSpace) -> np.ndarray:
    return predictions_of(logits_NC, space) == labels
