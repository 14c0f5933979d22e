"""The result of comparing two methods, and the sentence that states it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def class_probabilities(logits_NC: np.ndarray, *, is_multilabel: bool) -> np.ndarray:
    """Return the (N, C) float64 softmax of the logits, or the sigmoid in multi-label classification."""
    logits_NC = logits_NC.astype(np.float64)
    if is_multilabel:
        exponents = np.exp(-np.abs(logits_NC))
        return np.where(logits_NC < 0, exponents, 1.0) / (1.0 + exponents)
    exponents = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


def predict_labels(
    probabilities_NC: np.ndarray,
    *,
    task_type: str,
    ordinal_prediction: str = "argmax",
    thresholds: Sequence[float] | None = None,
) -> np.ndarray:
    """Predict from probabilities: (N,) class ids, or (N, C) int64 ones and zeros in multi-label classification.

    The predicted class is the most probable one, or with "expected-value" the one nearest to the mean of the class
    numbers (halves round up). A label is predicted if its probability is at least 0.5 or its own threshold; with two
    classes and a threshold, the second class likewise. With thresholds, the predicted one of ordered classes is the
    number of thresholds that the mean of the class numbers reaches.
    """
    if task_type == "multi_label":
        return (probabilities_NC >= np.array(thresholds or 0.5)).astype(np.int64)
    if thresholds is not None and task_type == "ordinal":
        means_N = probabilities_NC @ np.arange(probabilities_NC.shape[1], dtype=np.float64)
        return np.searchsorted(np.array(thresholds), means_N, side="right").astype(np.int64)
    if thresholds is not None:
        return (probabilities_NC[:, 1] >= thresholds[0]).astype(np.int64)
    if ordinal_prediction == "expected-value":
        means_N = probabilities_NC @ np.arange(probabilities_NC.shape[1], dtype=np.float64)
        return np.floor(means_N + 0.5).astype(np.int64)
    return probabilities_NC.argmax(axis=1)


# Means of equal scores differ by at most this much.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Comparison:
    """The comparison of two methods on one task, paired by seed.

    Differences are advantages of the method: positive where it is better than the baseline, also for metrics where
    smaller is better. They are in the unit of the metric (0.019, not 1.9 points).
    """

    baseline: str  # the name of the baseline
    method: str  # the name of the method
    task: str  # the name of the task
    metric: str  # the name of the metric
    difference: float  # the mean advantage over seeds; NaN without a common seed
    low: float  # the lower bound of its interval, without correction; NaN if there is none
    high: float  # the upper bound
    p: float  # the p of the primary test, without correction; NaN if there is none
    p_holm: float  # p after Holm's correction over the family; equal to p in a family of one
    family: int  # the number of comparisons that are corrected together
    seeds: int  # the number of seeds for which both methods have a score
    examples: int | None  # the number of examples treated as a random sample; None if they are treated as fixed
    over: str  # what the interval and p treat as random
    minimum_detectable_effect: float  # the smallest true difference that this number of seeds and examples
    p_sign_flip: float  # the p of the exact sign-flip test over seeds
    baseline_mean: float  # the baseline's mean score over the common seeds
    method_mean: float  # the method's mean score over the common seeds
    alpha: float  # the significance level; the interval has the confidence 1 - alpha
    greater_is_better: bool  # the direction of the metric
    notes: tuple[str, ...]  # further remarks for the reader, as sentences

    @property
    def shown(self) -> bool:
        """Whether the difference is significant: p after Holm is at most alpha, with at least two seeds."""
        return self.seeds >= 2 and self.p_holm <= self.alpha

    @property
    def sentence(self) -> str:
        """The verdict as a sentence, without the notes."""
        if self.seeds < 2:
            return self._too_few_seeds()
        if not self.shown:
            return self._nothing_shown()
        verb = "beats" if self.difference > 0 else "is worse than"
        low, high = (self.low, self.high) if self.difference > 0 else (-self.high, -self.low)
        claim = f"{self.method} {verb} {self.baseline} on {self.task} by {self._amount(abs(self.difference))}"
        facts = [self._interval(low, high), self._p_text(), self._counts(", ")]
        return f"{claim} ({', '.join(fact for fact in facts if fact)})"

    def _nothing_shown(self) -> str:
        facts = [self._number(self.difference, sign=True), self._interval(self.low, self.high), self._p_text()]
        claim = f"{self._pair()} ({', '.join(fact for fact in facts if fact)})"
        effect, counts = self.minimum_detectable_effect, self._counts(" and ")
        if math.isnan(effect):
            every = f"all {self.seeds} {self._runs()}"
            return f"{claim}; the difference is the same on {every}, so there is no variance to test it against"
        if self.greater_is_better and effect > 1:
            return f"{claim}; the minimum detectable effect with {counts} exceeds 100 points"
        return f"{claim}; the minimum detectable effect with {counts} is {self._amount(effect)}"

    def _too_few_seeds(self) -> str:
        if not self.seeds:
            return f"{self._pair()}: no seed was run with both methods"
        facts = [f"{self._number(self.difference, sign=True)} with the only seed that both ran"]
        if not math.isnan(self.low):
            facts.append(f"{self._interval(self.low, self.high)} over its {self.examples} examples")
        return f"{self._pair()} ({', '.join(facts)}); one seed cannot distinguish a better method from a lucky run"

    def _pair(self) -> str:
        return f"no difference shown between {self.method} and {self.baseline} on {self.task}"

    def _interval(self, low: float, high: float) -> str:
        if math.isnan(low):
            return ""
        return f"{100 * (1 - self.alpha):g} % CI {self._number(low)} to {self._number(high)}"

    def _p_text(self) -> str:
        if self.family == 1:
            return _p_number(self.p)
        uncorrected = f"{_p_number(self.p)} uncorrected, " if self.p <= self.alpha < self.p_holm else ""
        after = _p_number(self.p_holm) if not uncorrected else _p_number(self.p_holm).removeprefix("p = ")
        return f"{uncorrected}{after} after Holm"

    def _runs(self) -> str:
        return "folds" if self.over == "folds" else "seeds"

    def _counts(self, joined_by: str) -> str:
        counts = [f"{self.seeds} {self._runs()}", f"{self.examples} examples"]
        return joined_by.join(counts if self.over == "seeds and examples" else counts[:1])

    def _amount(self, value: float) -> str:
        # Scores between 0 and 1 are stated in hundredths (points); errors have the unit of their labels.
        return f"{self._number(value)} {'points' if self.greater_is_better else f'of {self.metric}'}"

    def _number(self, value: float, *, sign: bool = False) -> str:
        if self.greater_is_better:
            text = f"{100 * value:.1f}"
            # A bound that is not zero must not be printed as zero, unless it is floating-point error.
            text = f"{100 * value:.1g}" if abs(value) > _ROUNDING and not float(text) else text
        else:
            text = f"{value:.3g}"
        text = "0.0" if float(text) == 0 else text
        return f"+{text}" if sign and value > 0 else text


def _p_number(p: float) -> str:
    if p < 0.001:
        return "p < 0.001"
    text = f"{p:.2g}"
    # Rounding must not move p across a common significance level.
    if any((p <= level) != (float(text) <= level) for level in (0.01, 0.05, 0.1)):
        text = f"{p:.4g}"
    return f"p = {text}"
