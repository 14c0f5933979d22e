"""`Fusion`: combine the logits of several models into those of one; and the mean of logits that a bag predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FUSION_KINDS = ("single", "weights", "linear")

# Log-probabilities and logits are clipped here before a linear fusion: a member that is certain and wrong in one new
# row would otherwise outvote all others. exp(-14) is about one in a million.
_LOGIT_LIMIT = 14.0
# Numbers of all members that are combined at a time (32 MB).
_VALUES_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Fusion:
    """How the logits of the members of an ensemble become its own.

    "single" and "weights" are the weighted mean of the members' probabilities (regression: scores), "linear" is a
    linear function of `fusion_features`.
    """

    kind: str  # one of `FUSION_KINDS`
    members: tuple[str, ...]  # the members, in the order of `weights` or of the rows of `coefficients`
    task_type: str  # the task type of the label space
    weights: tuple[float, ...] = ()  # a positive weight per member, with sum 1; empty for "linear"
    coefficients: tuple[tuple[float, ...], ...] = ()  # "linear": (M * C) rows of C numbers, member by member
    bias: tuple[float, ...] = ()  # "linear": C numbers; empty otherwise

    def __post_init__(self) -> None:
        count, outputs, is_linear = len(self.members), len(self.bias), self.kind == "linear"
        shape = np.shape(self.coefficients if is_linear else self.weights)
        expected = (count * outputs, outputs) if is_linear else (count,)
        if not count or len(set(self.members)) < count or shape != expected:
            raise ValueError(
                f"a fusion: got the members {list(self.members)} and numbers of shape {shape}, expected different"
                f" members and shape {expected}"
            )

    @classmethod
    def weighted(cls, kind: str, weights: Mapping[str, float], task_type: str) -> Fusion:
        """Make a weighted mean; weights, at least one positive, are divided by their sum, zeros left out."""
        kept = {name: float(weight) for name, weight in weights.items() if weight != 0}
        total = sum(kept.values())
        return cls(kind, tuple(kept), task_type, tuple(weight / total for weight in kept.values()))

    @classmethod
    def linear(cls, members: Sequence[str], task_type: str, coefficients: np.ndarray, bias: np.ndarray) -> Fusion:
        """Make a linear fusion from the (M * C, C) coefficients of `fusion_features` and the (C,) bias."""
        rows = tuple(tuple(map(float, row)) for row in np.asarray(coefficients))
        return cls("linear", tuple(members), task_type, coefficients=rows, bias=tuple(map(float, np.asarray(bias))))

    def apply(self, logits: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the (N, C) float64 logits of the ensemble from those of each member."""
        parts = [logits[name] for name in self.members]
        rows, width = np.shape(parts[0])
        step = max(1, _VALUES_AT_ONCE // (width * len(parts)))
        pieces = [self._apply([part[start : start + step] for part in parts]) for start in range(0, max(rows, 1), step)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _apply(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        if self.kind != "linear":
            return mean_logits(parts, self.task_type, self.weights)
        features = fusion_features(dict(zip(self.members, parts, strict=True)), self.members, self.task_type)
        fused_NC = features @ np.array(self.coefficients) + np.array(self.bias)
        return _log_softmax(fused_NC) if self.task_type in ("classification", "ordinal") else fused_NC

    def member_weights(self) -> dict[str, float]:
        """Return how much each member counts, with sum 1; for "linear" the share of its coefficients' magnitude."""
        if self.kind != "linear":
            return dict(zip(self.members, self.weights, strict=True))
        sizes = np.abs(np.array(self.coefficients)).reshape(len(self.members), -1).sum(axis=1)
        shares = sizes / sizes.sum() if sizes.sum() > 0 else np.full(len(sizes), 1 / len(sizes))
        return dict(zip(self.members, shares.tolist(), strict=True))

    @classmethod
    def from_json(cls, content: Any) -> Fusion:
        """Read the object that `dataclasses.asdict` made."""
        return cls(
            kind=content["kind"],
            members=tuple(content["members"]),
            task_type=content["task_type"],
            weights=tuple(map(float, content["weights"])),
            coefficients=tuple(tuple(map(float, row)) for row in content["coefficients"]),
            bias=tuple(map(float, content["bias"])),
        )


def fusion_features(logits: Mapping[str, np.ndarray], members: Sequence[str], task_type: str) -> np.ndarray:
    """Return the (N, M * C) float64 inputs of a linear fusion, member by member.

    These are log-probabilities for classes and logits for multi-label, clipped at +-14, and scores for regression.
    """
    parts = []
    for name in members:
        values_NC = np.asarray(logits[name], dtype=np.float64)
        if task_type in ("classification", "ordinal"):
            values_NC = _log_softmax(values_NC)
        parts.append(values_NC if task_type == "regression" else values_NC.clip(-_LOGIT_LIMIT, _LOGIT_LIMIT))
    return np.concatenate(parts, axis=1)


def mean_logits(logits: Sequence[np.ndarray], task_type: str, weights: Sequence[float] | None = None) -> np.ndarray:
    """Return the (N, C) float64 logits whose probabilities are the mean of those of several models."""
    values_MNC = np.stack([np.asarray(part, dtype=np.float64) for part in logits])
    count = len(values_MNC)
    shares_M = np.full(count, 1 / count) if weights is None else np.array(weights, dtype=np.float64)
    if task_type == "regression":
        return np.tensordot(shares_M, values_MNC, axes=1)
    log_shares = np.log(shares_M)[:, None, None]
    if task_type != "multi_label":
        return _log_sum(_log_softmax(values_MNC) + log_shares, axis=0)
    # log sigmoid(x) and log sigmoid(-x), so that certain predictions stay finite.
    log_yes, log_no = -np.logaddexp(0, -values_MNC), -np.logaddexp(0, values_MNC)
    return _log_sum(log_yes + log_shares, axis=0) - _log_sum(log_no + log_shares, axis=0)


def _log_softmax(values: np.ndarray) -> np.ndarray:
    return values - np.expand_dims(_log_sum(values, axis=-1), -1)


def _log_sum(values: np.ndarray, axis: int) -> np.ndarray:
    """The logarithm of the sum of exponentials over an axis; ten times as fast as `np.logaddexp.reduce`."""
    highest = values.max(axis=axis, keepdims=True)
    return np.log(np.exp(values - highest).sum(axis=axis)) + np.squeeze(highest, axis)
