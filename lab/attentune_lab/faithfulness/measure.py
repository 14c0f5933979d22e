"""Measures the faithfulness of explanations by erasing the tokens that they rank highest."""

import importlib.util
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import kendalltau, spearmanr

from attentune.config.parse import did_you_mean
from attentune.data.dataset import TextRows
from attentune.data.tokenization import Features
from attentune.errors import ConfigError, DataError
from attentune.explain.explainer import Attribution, Explainer
from attentune.explain.methods import METHODS, method_of, works_on
from attentune.explain.scorer import Scorer, Settings
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.inference.scoring import evaluating, score_rows
from attentune.metrics.metrics import probabilities_of
from attentune.models.cpu_layers import attention_by
from attentune.seeding import numpy_generator
from attentune.stats.estimate import bootstrap_mean
from attentune_lab.interval import Interval

# ERASER's bins (DeYoung et al. 2020, section 4.2).
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
# Replace by the mask token; delete, which shortens the text; or exclude from attention, which keeps positions.
ERASURES = ("mask", "delete", "attention")

_ROWS_AT_ONCE = 8192
_NOTHING = np.zeros(0, dtype=np.int64)


class Eraser:
    """Predicts rows with erased tokens and caches the predictions."""

    def __init__(self, scorer: Scorer, erasure: str) -> None:
        self._scorer, self._erasure = scorer, erasure
        self._known: dict[tuple[int, bytes], np.ndarray] = {}
        self.predicted = 0

    def probabilities(self, rows: Sequence[int] | np.ndarray, erased: Sequence[np.ndarray]) -> np.ndarray:
        """Predict class probabilities of rows with erased tokens."""
        places = [np.sort(positions).astype(np.int64) for positions in erased]
        keys = [(int(row), positions.tobytes()) for row, positions in zip(rows, places, strict=True)]
        new = {key: positions for key, positions in zip(keys, places, strict=True) if key not in self._known}
        names = list(new)
        for begin in range(0, len(names), _ROWS_AT_ONCE):
            part = names[begin : begin + _ROWS_AT_ONCE]
            logits_MC = self._predict(np.array([row for row, _ in part]), [new[key] for key in part])
            answers = probabilities_of(logits_MC, self._scorer.label_space)
            self._known |= dict(zip(part, answers, strict=True))
        self.predicted += len(names)
        if not keys:
            return np.zeros((0, self._scorer.label_space.num_labels))
        return np.stack([self._known[key] for key in keys])

    def of_targets(
        self, rows: np.ndarray, target_M: np.ndarray, erased: Sequence[np.ndarray] | None = None
    ) -> np.ndarray:
        """Predict the probability of each row's target, (M,), with or without erased tokens."""
        erased = [_NOTHING] * len(rows) if erased is None else erased
        return self.probabilities(rows, erased)[np.arange(len(rows)), target_M]

    def _predict(self, rows_M: np.ndarray, places: list[np.ndarray]) -> np.ndarray:
        """Compute the logits of erased rows, (M, C)."""
        scorer = self._scorer
        features, numbers = scorer.features, rows_M
        if self._erasure == "delete":
            features, numbers = without_tokens(features, rows_M, places), np.arange(len(rows_M))
        return score_rows(
            scorer.model,
            features,
            pad_token_id=scorer.pad_token_id,
            accelerator=scorer.accelerator,
            rows=numbers,
            mask_token_id=scorer.mask_token_id,
            masked=places if self._erasure == "mask" else None,
            attention_excluded=places if self._erasure == "attention" else None,
        ).logits_NC


def without_tokens(features: Features, rows_M: np.ndarray, places: Sequence[np.ndarray]) -> Features:
    remaining_indices = []
    for row, erased in zip(rows_M, places, strict=True):
        span = features.row(int(row))
        remaining_indices.append(np.delete(np.arange(span.start, span.stop), erased))
    flat = np.concatenate(remaining_indices)
    seconds = features.second_starts
    if seconds is not None:
        gone = [np.count_nonzero(erased < seconds[row]) for row, erased in zip(rows_M, places, strict=True)]
        seconds = seconds[rows_M] - np.array(gone)
    return replace(
        features,
        ids=features.ids[flat],
        type_ids=None if features.type_ids is None else features.type_ids[flat],
        special=features.special[flat],
        starts=np.concatenate([[0], np.cumsum([len(remaining) for remaining in remaining_indices])]).astype(np.int64),
        full_lengths=features.full_lengths[rows_M],
        second_starts=seconds,
    )


@dataclass(frozen=True)
class ProbabilityDrops:
    """Class probabilities of N rows before and after erasing, for K shares of tokens."""

    whole_NC: np.ndarray  # of the original rows
    without_NKC: np.ndarray  # without the top-ranked tokens
    only_NKC: np.ndarray  # with only the top-ranked tokens
    target_N: np.ndarray  # ids of the explained classes

    @property
    def comprehensiveness(self) -> np.ndarray:
        """(N, K) p(class | text) - p(class | text without the tokens); high is good."""
        return self._drop(self.without_NKC)

    @property
    def sufficiency(self) -> np.ndarray:
        """(N, K) p(class | text) - p(class | the tokens alone); low is good."""
        return self._drop(self.only_NKC)

    def _drop(self, erased_NKC: np.ndarray) -> np.ndarray:
        rows = np.arange(len(self.target_N))
        return self.whole_NC[rows, self.target_N][:, None] - erased_NKC[rows, :, self.target_N]


def probability_drops(
    eraser: Eraser,
    rows: np.ndarray,
    orders: Sequence[np.ndarray],
    target_N: np.ndarray,
    shares: Sequence[float] = SHARES,
) -> ProbabilityDrops:
    """Erase the top-ranked tokens of each row, and all others, at several shares."""
    counts = [top_counts(len(order), shares) for order in orders]
    first = [order[:count] for order, row_counts in zip(orders, counts, strict=True) for count in row_counts]
    rest = [order[count:] for order, row_counts in zip(orders, counts, strict=True) for count in row_counts]
    spread = np.repeat(rows, len(shares))
    probabilities = eraser.probabilities(
        np.concatenate([rows, spread, spread]), [*[_NOTHING] * len(rows), *first, *rest]
    )
    whole_NC, without, only = np.split(probabilities, [len(rows), len(rows) + len(spread)])
    shape = (len(rows), len(shares), -1)
    return ProbabilityDrops(whole_NC, without.reshape(shape), only.reshape(shape), target_N)


@dataclass(frozen=True)
class NaopcBounds:
    """The lowest and highest mean drop of each of N rows over all orders of its tokens, as found by beam search."""

    lower_N: np.ndarray
    upper_N: np.ndarray

    def normalised(self, drops_N: np.ndarray) -> np.ndarray:
        """Scale mean drops to 0 at the lower bound and 1 at the upper bound; NaN where the bounds coincide."""
        width_N = self.upper_N - self.lower_N
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(width_N > 1e-9, (drops_N - self.lower_N) / width_N, np.nan)


def mean_drops(eraser: Eraser, rows: np.ndarray, orders: Sequence[np.ndarray], target_N: np.ndarray) -> np.ndarray:
    """Compute the mean drop of the target's probability while all tokens are erased one after another (AOPC)."""
    owner = np.repeat(np.arange(len(rows)), [len(order) for order in orders])
    erased = [order[:count] for order in orders for count in range(1, len(order) + 1)]
    whole_N = eraser.of_targets(rows, target_N)
    drop_M = whole_N[owner] - eraser.of_targets(rows[owner], target_N[owner], erased)
    return np.bincount(owner, weights=drop_M, minlength=len(rows)) / np.bincount(owner, minlength=len(rows))


def find_naopc_bounds(
    eraser: Eraser, rows: np.ndarray, places: Sequence[np.ndarray], target_N: np.ndarray, *, beam: int
) -> NaopcBounds:
    """Search for the bounds of `mean_drops` over all orders of these positions, by beam search.

    A prediction depends on the set of erased tokens, not on their order. A beam that holds all sets of one size (20 for
    6 tokens, 70 for 8) finds the exact bounds; a smaller one may find narrower bounds.
    """
    upper_N, lower_N = (sign * _highest_mean(eraser, rows, places, target_N, beam, sign) for sign in (1.0, -1.0))
    return NaopcBounds(lower_N, upper_N)


def _highest_mean(
    eraser: Eraser, rows: np.ndarray, places: Sequence[np.ndarray], target_N: np.ndarray, beam: int, sign: float
) -> np.ndarray:
    """Find the highest mean of sign x drop, (N,); all rows advance together, which fills batches."""
    whole_N = eraser.of_targets(rows, target_N)
    beams: list[dict[frozenset[int], float]] = [{frozenset(): 0.0} for _ in rows]
    for size in range(1, max(map(len, places)) + 1):
        grown = [_grown(held, own) if size <= len(own) else {} for held, own in zip(beams, places, strict=True)]
        owner = np.repeat(np.arange(len(rows)), [len(sets) for sets in grown])
        erased = [np.fromiter(gone, dtype=np.int64) for sets in grown for gone in sets]
        drops = iter((sign * (whole_N[owner] - eraser.of_targets(rows[owner], target_N[owner], erased))).tolist())
        for row, sets in enumerate(grown):
            if sets:
                sums = {gone: total + next(drops) for gone, total in sets.items()}
                beams[row] = dict(sorted(sums.items(), key=lambda entry: -entry[1])[:beam])
    return np.array([max(held.values()) / len(own) for held, own in zip(beams, places, strict=True)])


def _grown(held: dict[frozenset[int], float], places: np.ndarray) -> dict[frozenset[int], float]:
    """Extend all sets by one token, each with the highest sum of drops of the orders leading to it."""
    grown: dict[frozenset[int], float] = {}
    for gone, total in held.items():
        for place in places.tolist():
            if place not in gone:
                more = gone | {place}
                grown[more] = max(total, grown.get(more, -np.inf))
    return grown


def ranked(scores_T: np.ndarray, ordinary: np.ndarray, *key: int | str) -> np.ndarray:
    """Sort the positions of a row's non-special tokens by score, highest first.

    Ties are ordered at random: in text order a constant method would get the merit of the first words.
    """
    tie_breaks = numpy_generator("ties", *key).random(len(ordinary))
    return ordinary[np.lexsort((tie_breaks, -scores_T[ordinary]))]


def top_counts(count: int, shares: Sequence[float] = SHARES) -> list[int]:
    """Convert shares of `count` tokens to numbers of tokens, rounded up to at least one."""
    # Rounded first, since 0.1 x 30 exceeds 3 in floating point.
    return [min(count, max(1, math.ceil(round(share * count, 9)))) for share in shares]


RANDOM_BASELINE = "random"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Measures:
    erasures: Sequence[str] = ERASURES  # some of `ERASURES`
    settings: Settings = Settings()  # options of the methods
    draws: int = 5  # random orders that the random baseline averages over
    beam: int = 5  # beam width of the search for NAOPC bounds; 0 skips the normalised AOPC
    beam_tokens: int = 12  # search for bounds only in texts of at most so many non-special tokens


@dataclass(frozen=True)
class Ranked:
    attributions: list[Attribution]  # one per row; those of the first draw if there are several
    orders: list[list[np.ndarray]]  # for each draw and row the positions of the non-special tokens


def rank(explainer: Explainer, name: str, measures: Measures, tell: Progress) -> Ranked:
    """Rank each row's tokens by a method's scores for the predicted class; several draws for the random baseline."""
    tell(f"scores by {name}")
    settings = measures.settings
    seeds = [settings.seed + draw for draw in range(measures.draws if name == RANDOM_BASELINE else 1)]
    draws = [explainer.attributions(name, settings=replace(settings, seed=seed)) for seed in seeds]
    features = explainer.scorer.features
    orders = [
        [
            ranked(attribution.scores, features.non_special_positions(row), seed, row)
            for row, attribution in enumerate(attributions)
        ]
        for seed, attributions in zip(seeds, draws, strict=True)
    ]
    return Ranked(draws[0], orders)


def agreements(
    first: Sequence[Attribution], second: Sequence[Attribution], places: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Compute rank correlations of two lists of scores, row by row.

    Identical scores agree fully (1), even if all are the same; if only one list is constant, the agreement is 0.
    """
    pairs = [
        _agreement(one.scores[row_places], other.scores[row_places])
        for one, other, row_places in zip(first, second, places, strict=True)
    ]
    taus, rhos = zip(*pairs, strict=True)
    return np.array(taus), np.array(rhos)


def _agreement(first_T: np.ndarray, second_T: np.ndarray) -> tuple[float, float]:
    if len(first_T) < 2:
        return float("nan"), float("nan")
    if np.array_equal(first_T, second_T):
        return 1.0, 1.0
    if np.ptp(first_T) == 0 or np.ptp(second_T) == 0:
        return 0.0, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(kendalltau(first_T, second_T).statistic), float(spearmanr(first_T, second_T).statistic)


@dataclass(frozen=True)
class MethodScore:
    method: str  # a key of `explain.methods.METHODS`
    signed: bool  # whether the method's scores can be negative
    erasure: str  # one of `ERASURES`
    comprehensiveness: Interval  # mean drop in probability without the top-ranked tokens; high is good
    sufficiency: Interval  # mean drop with only the top-ranked tokens; low is good
    difference: Interval | None  # comprehensiveness minus the first method's, paired by text; None for the first method
    bins: dict[str, list[float]]  # (K,) comprehensiveness and (K,) sufficiency at each share of tokens
    naopc_comprehensiveness: Interval | None  # normalised AOPC of the short texts
    naopc_sufficiency: Interval | None  # the same of the reversed order; low is good
    naopc_rows: int  # the number of texts behind these two


@dataclass(frozen=True)
class FaithfulnessReport:
    run: str  # the run's folder
    rows: int  # number of texts evaluated
    left_out: int  # number of texts left out because all their tokens are special
    accuracy: float | None  # on these rows; None without labels
    shares: list[float]  # shares of tokens erased (the bins)
    draws: int  # random orders that the random baseline averages over
    beam: int  # beam width of the search for NAOPC bounds; 0 for none
    beam_tokens: int  # maximum number of tokens of a text for that search
    precision: str  # arithmetic precision of the model
    seed: int  # of all random choices
    scores: list[MethodScore]  # one per method and erasure
    costs: list[dict[str, Any]]  # one per method: mean passes (see `Explanation.passes`) and seconds per text


def mean_interval(values_N: np.ndarray, seed: int) -> Interval:
    """Compute the mean of finite values with its 95 % bootstrap interval; equal numbers of rows share resamples."""
    known = values_N[np.isfinite(values_N)]
    if not len(known):
        return Interval(float("nan"), float("nan"), float("nan"))
    generator = numpy_generator("faithfulness", seed, len(known))
    low, high = bootstrap_mean(known, generator=generator)
    return Interval(float(known.mean()), low, high)


# Too slow to run by default.
_EXPENSIVE = ("lime", "shap")


@dataclass(frozen=True)
class FaithfulnessResult:
    """The report and the data behind it."""

    report: FaithfulnessReport  # means and intervals
    rows: TextRows  # the texts evaluated
    kept: list[int]  # their row numbers among those given
    explainer: Explainer  # of these texts
    ranked: dict[str, Ranked]  # rankings by method
    probability_drops: dict[tuple[str, str], ProbabilityDrops]  # by method and erasure, of the first draw


def possible_methods(saved: ModelPredictor, *, expensive: bool = False) -> tuple[str, ...]:
    """Return the methods that work on this run; without the slowest and those whose library is not installed."""
    has_captum = importlib.util.find_spec("captum") is not None
    return tuple(
        name
        for name, method in METHODS.items()
        if works_on(method, saved)
        and (expensive or (name not in _EXPENSIVE and (has_captum or not method.needs_captum)))
    )


def measure_faithfulness(
    run: Predictor,
    rows: TextRows,
    *,
    methods: Sequence[str] | None = None,
    measures: Measures | None = None,
    precision: str | None = None,
    progress: Progress | None = None,
) -> FaithfulnessResult:
    """Erase the tokens that each method ranks highest and measure the drop of the predicted class's probability.

    All methods explain the predicted class of the same model on the same texts; labels are only used for the accuracy.
    `methods` are keys of `METHODS` (default: `possible_methods`); the baseline "random" is always added.
    """
    measures = measures or Measures()
    saved = run.single_model("faithfulness")
    names = list(dict.fromkeys([*(possible_methods(saved) if methods is None else methods), RANDOM_BASELINE]))
    check(saved, names, measures)
    with attention_by(saved.model):
        explainer, readable_rows = readable(saved, rows, precision)
        kept_rows = rows if len(readable_rows) == len(rows) else rows.take(readable_rows)
        tell = progress or (lambda what: None)
        ranks = {name: rank(explainer, name, measures, tell) for name in names}
        scores: list[MethodScore] = []
        by_erasure: dict[tuple[str, str], ProbabilityDrops] = {}
        for erasure in measures.erasures:
            tell(f"erasing by {erasure}")
            with evaluating(explainer.scorer.model):
                of_erasure, drops = _erase(explainer.scorer, erasure, ranks, measures)
            scores += of_erasure
            by_erasure |= {(name, erasure): own for name, own in drops.items()}
    report = FaithfulnessReport(
        run=str(saved.folder),
        rows=len(kept_rows),
        left_out=len(rows) - len(kept_rows),
        accuracy=None if kept_rows.labels is None else float(np.mean(kept_rows.labels == _targets(ranks))),
        shares=list(SHARES),
        draws=measures.draws,
        beam=measures.beam,
        beam_tokens=measures.beam_tokens,
        precision=explainer.scorer.accelerator.mixed_precision,
        seed=measures.settings.seed,
        scores=scores,
        costs=[
            {"method": name}
            | {
                what: float(np.mean([getattr(attribution, what) for attribution in ranking.attributions]))
                for what in ("passes", "seconds")
            }
            for name, ranking in ranks.items()
        ],
    )
    return FaithfulnessResult(report, kept_rows, readable_rows, explainer, ranks, by_erasure)


def check(saved: ModelPredictor, methods: Sequence[str], measures: Measures) -> None:
    """Check that the run, methods and options can be evaluated."""
    problems, space = [], saved.label_space
    if space.task_type == "regression" or space.is_multilabel:
        found = "several labels at once" if space.is_multilabel else "a score"
        problems.append(
            f"{saved.folder}: predicts {found}; expected a run that predicts one class, whose probability can fall."
        )
    for erasure in measures.erasures or ("none",):
        if erasure not in ERASURES:
            known = ", ".join(ERASURES)
            problems.append(f"erasures: got {erasure!r}, expected some of {known}.{did_you_mean(erasure, ERASURES)}")
    for name in methods:
        try:
            method_of(name, saved)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def readable(saved: ModelPredictor, rows: TextRows, precision: str | None) -> tuple[Explainer, list[int]]:
    """Make an explainer of the rows that have a non-special token; also return their row numbers."""
    explainer = Explainer(saved, rows, precision=precision)
    features = explainer.scorer.features
    kept = [row for row in range(len(rows)) if len(features.non_special_positions(row))]
    if not kept:
        raise DataError(f"{rows.source}: got {len(rows)} texts, expected at least one with a word in it.")
    return explainer if len(kept) == len(rows) else Explainer(saved, rows.take(kept), precision=precision), kept


def _targets(ranks: dict[str, Ranked]) -> np.ndarray:
    return np.array([attribution.target for attribution in next(iter(ranks.values())).attributions])


def _erase(
    scorer: Scorer, erasure: str, ranks: dict[str, Ranked], measures: Measures
) -> tuple[list[MethodScore], dict[str, ProbabilityDrops]]:
    """Score the rankings of all methods under one kind of erasure; also return the drops of their first draws."""
    eraser, seed, target_N = Eraser(scorer, erasure), measures.settings.seed, _targets(ranks)
    rows = np.arange(len(target_N))
    drops = {
        name: [probability_drops(eraser, rows, orders, target_N) for orders in ranking.orders]
        for name, ranking in ranks.items()
    }
    places = [scorer.features.non_special_positions(int(row)) for row in rows]
    short = np.array([row for row in rows if len(places[row]) <= measures.beam_tokens], dtype=np.int64)
    bounds: NaopcBounds | None = None
    if measures.beam and len(short):
        chosen = [places[row] for row in short]
        bounds = find_naopc_bounds(eraser, short, chosen, target_N[short], beam=measures.beam)

    def naopc(orders: list[list[np.ndarray]], step: int) -> np.ndarray:
        """Compute the normalised AOPC of short rows in a method's order or (step -1) in the reversed one."""
        assert bounds is not None
        targets = target_N[short]
        drawn = [mean_drops(eraser, short, [own[row][::step] for row in short], targets) for own in orders]
        return np.mean([bounds.normalised(one) for one in drawn], axis=0)

    scores: list[MethodScore] = []
    base_N: np.ndarray | None = None
    for name, ranking in ranks.items():
        comprehensiveness_NK = np.mean([own.comprehensiveness for own in drops[name]], axis=0)
        sufficiency_NK = np.mean([own.sufficiency for own in drops[name]], axis=0)
        whole_N = comprehensiveness_NK.mean(axis=1)
        forwards_N, backwards_N = (None if bounds is None else naopc(ranking.orders, step) for step in (1, -1))
        score = MethodScore(
            method=name,
            signed=METHODS[name].signed,
            erasure=erasure,
            comprehensiveness=mean_interval(whole_N, seed),
            sufficiency=mean_interval(sufficiency_NK.mean(axis=1), seed),
            difference=None if base_N is None else mean_interval(whole_N - base_N, seed),
            bins={
                "comprehensiveness": comprehensiveness_NK.mean(axis=0).tolist(),
                "sufficiency": sufficiency_NK.mean(axis=0).tolist(),
            },
            naopc_comprehensiveness=None if forwards_N is None else mean_interval(forwards_N, seed),
            naopc_sufficiency=None if backwards_N is None else mean_interval(backwards_N, seed),
            naopc_rows=0 if forwards_N is None else int(np.isfinite(forwards_N).sum()),
        )
        scores.append(score)
        base_N = whole_N if base_N is None else base_N
    return scores, {name: own[0] for name, own in drops.items()}
