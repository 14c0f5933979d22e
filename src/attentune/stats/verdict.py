"""What a comparison found, and the sentence that says it."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Means of equal scores differ by this much at most.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Comparison:
    """Two methods on one task, paired by seed.

    Differences are advantages of the method: above zero where it is better than the baseline, also where a smaller
    metric is better. They are in the metric's own unit (0.019, not 1.9 points).

    Attributes:
        baseline: the name of what is compared with.
        method: the name of what is compared.
        task: its name.
        metric: its name.
        difference: the mean advantage over seeds; NaN without a seed in common.
        low: the lower end of its interval, for this comparison alone; NaN where there is none.
        high: its upper end.
        p: of the primary test, for this comparison alone; NaN where there is none.
        p_holm: p after Holm's correction over the family; p itself in a family of one.
        family: how many comparisons were corrected for together.
        seeds: how many both methods have a score for.
        examples: how many were used as drawn by chance; None where they are taken as given.
        over: what the interval and p take for drawn: "seeds", "seeds and examples", "examples" (one seed), or "folds"
            (of cross-validation, whose overlap they allow for; `seeds` then counts the folds).
        detectable: the smallest true difference that this many seeds and examples, with the spread seen, show with a
            chance of 80 % at level alpha / family (the strictest of Holm's levels); NaN where nothing varies.
        p_seeds: of the paired t test over seeds, the examples taken as given.
        p_sign_flip: of the exact sign-flip test over seeds.
        p_wilcoxon: of Wilcoxon's signed-rank test over seeds.
        smallest_p: what the last two could at best have been with this many seeds.
        baseline_mean: the baseline's mean score over the shared seeds.
        method_mean: the method's.
        baseline_sd: the baseline's standard deviation over the shared seeds; NaN for one.
        method_sd: the method's.
        difference_sd: that of the differences, seed by seed.
        baseline_collapsed: seeds on which the baseline scores no better than the majority guess.
        method_collapsed: seeds on which the method does.
        alpha: the level; the interval has the confidence 1 - alpha.
        greater_is_better: the metric's direction.
        notes: what a reader must know besides, as sentences.
    """

    baseline: str
    method: str
    task: str
    metric: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    family: int
    seeds: int
    examples: int | None
    over: str
    detectable: float
    p_seeds: float
    p_sign_flip: float
    p_wilcoxon: float
    smallest_p: float
    baseline_mean: float
    method_mean: float
    baseline_sd: float
    method_sd: float
    difference_sd: float
    baseline_collapsed: tuple[int, ...]
    method_collapsed: tuple[int, ...]
    alpha: float
    greater_is_better: bool
    notes: tuple[str, ...]

    @property
    def shown(self) -> bool:
        """Whether a difference between the methods is shown: p after Holm at most alpha, with two seeds or more."""
        return self.seeds >= 2 and self.p_holm <= self.alpha

    @property
    def sentence(self) -> str:
        """The verdict in words, without the notes."""
        if self.seeds < 2:
            return self._too_few_seeds()
        if not self.shown:
            return self._nothing_shown()
        verb = "beats" if self.difference > 0 else "falls behind"
        low, high = (self.low, self.high) if self.difference > 0 else (-self.high, -self.low)
        found = f"{self.method} {verb} {self.baseline} on {self.task} by {self._amount(abs(self.difference))}"
        facts = [self._interval(low, high), self._p_text(), self._counts(", ")]
        return f"{found} ({', '.join(fact for fact in facts if fact)})"

    def _nothing_shown(self) -> str:
        facts = [self._number(self.difference, sign=True), self._interval(self.low, self.high), self._p_text()]
        found = f"{self._pair()} ({', '.join(fact for fact in facts if fact)})"
        if math.isnan(self.detectable):
            every = f"all {self.seeds} {self._runs()}"
            return f"{found}; the difference is the same on {every}, which leaves no spread to judge it by"
        if self.greater_is_better and self.detectable > 1:
            return f"{found}; with {self._counts(' and ')} not even a difference of 100 points could have been"
        return f"{found}; with {self._counts(' and ')} only {self._amount(self.detectable)} or more could have been"

    def _too_few_seeds(self) -> str:
        if not self.seeds:
            return f"{self._pair()}: no seed was run with both"
        facts = [f"{self._number(self.difference, sign=True)} in the one seed run with both"]
        if not math.isnan(self.low):
            facts.append(f"{self._interval(self.low, self.high)} over its {self.examples} examples")
        return f"{self._pair()} ({', '.join(facts)}); one seed cannot tell a better method from a luckier run"

    def _pair(self) -> str:
        return f"no difference shown between {self.method} and {self.baseline} on {self.task}"

    def _interval(self, low: float, high: float) -> str:
        if math.isnan(low):
            return ""
        return f"{100 * (1 - self.alpha):g} % CI {self._number(low)} to {self._number(high)}"

    def _p_text(self) -> str:
        if self.family == 1:
            return _p_number(self.p)
        alone = f"{_p_number(self.p)} alone, " if self.p <= self.alpha < self.p_holm else ""
        after = _p_number(self.p_holm) if not alone else _p_number(self.p_holm).removeprefix("p = ")
        return f"{alone}{after} after Holm"

    def _runs(self) -> str:
        return "folds" if self.over == "folds" else "seeds"

    def _counts(self, joined_by: str) -> str:
        counts = [f"{self.seeds} {self._runs()}", f"{self.examples} examples"]
        return joined_by.join(counts if self.over == "seeds and examples" else counts[:1])

    def _amount(self, value: float) -> str:
        return f"{self._number(value)} {self._unit()}"

    def _unit(self) -> str:
        # Scores between 0 and 1 are read in hundredths; errors have the unit of their labels.
        return "points" if self.greater_is_better else f"of {self.metric}"

    def _number(self, value: float, *, sign: bool = False) -> str:
        if self.greater_is_better:
            text = f"{100 * value:.1f}"
            # A bound that is not zero must not read as zero; what rounding leaves of a zero must.
            text = f"{100 * value:.1g}" if abs(value) > _ROUNDING and not float(text) else text
        else:
            text = f"{value:.3g}"
        text = "0.0" if float(text) == 0 else text
        return f"+{text}" if sign and value > 0 else text


def _p_number(p: float) -> str:
    if p < 0.001:
        return "p < 0.001"
    text = f"{p:.2g}"
    # Rounding must not move p across a level that people compare it with.
    if any((p <= level) != (float(text) <= level) for level in (0.01, 0.05, 0.1)):
        text = f"{p:.4g}"
    return f"p = {text}"
