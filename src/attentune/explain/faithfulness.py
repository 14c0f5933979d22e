"""Are explanations true? What erasing the tokens that they point at does to the very model they explain."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attentune.config.parsing import did_you_mean
from attentune.data.rows import TextRows
from attentune.errors import ConfigError, DataError
from attentune.evaluation.saved import SavedRun
from attentune.explain.aopc import Falls, falls
from attentune.explain.erasure import ERASURES, Eraser
from attentune.explain.explainer import Attribution, Explainer
from attentune.explain.limits import Limits, find_limits, mean_falls
from attentune.explain.methods import METHODS, method_for
from attentune.explain.probe import Probe, Settings
from attentune.explain.ranking import SHARES, ranked
from attentune.explain.verdict import FaithfulnessReport, MethodCost, MethodScore, mean_interval
from attentune.models.attention import attention_by

# The floor: what an order drawn by lot reaches.
FLOOR = "random"
# Too dear to be asked for by nobody.
_DEAR = ("lime", "shap")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Measures:
    """What is measured, beside the methods.

    Attributes:
        erasures: some of `ERASURES`.
        settings: of the methods; the seed also decides ties, the floor's draws and the resamples.
        draws: random orders that the floor is the mean of.
        beam: sets of tokens kept in the search for the limits; 0 leaves the normalised form out.
        beam_tokens: texts of up to so many ordinary tokens have their limits searched.
    """

    erasures: Sequence[str] = ERASURES
    settings: Settings = Settings()
    draws: int = 5
    beam: int = 5
    beam_tokens: int = 12


@dataclass(frozen=True)
class Ranked:
    """What a method says of each row.

    Attributes:
        attributions: of each row; those of the first draw where there are several.
        orders: for each draw, of each row its ordinary tokens' places, the most important first.
    """

    attributions: list[Attribution]
    orders: list[list[np.ndarray]]


@dataclass(frozen=True)
class Found:
    """The report, and what stands behind it.

    Attributes:
        report: means and intervals.
        rows: the texts that were measured.
        ranked: by method.
        falls: by method and erasure; of the first draw.
    """

    report: FaithfulnessReport
    rows: TextRows
    ranked: dict[str, Ranked]
    falls: dict[tuple[str, str], Falls]


def default_methods(saved: SavedRun) -> tuple[str, ...]:
    """The methods that work on this run, but for those that are very dear."""
    has_captum = importlib.util.find_spec("captum") is not None
    return tuple(
        name
        for name, method in METHODS.items()
        if name not in _DEAR
        and (not method.needs_gate or saved.model.token_gate is not None)
        and (not method.needs_captum or has_captum)
    )


def measure_faithfulness(
    run: str | Path | SavedRun,
    rows: TextRows,
    *,
    methods: Sequence[str] | None = None,
    measures: Measures | None = None,
    precision: str | None = None,
    progress: Progress | None = None,
) -> Found:
    """Erase what methods point at, and see how far the predicted class's probability falls.

    Every method is asked about the same model and the same texts, and ranked by what it says of the predicted class.

    Args:
        run: a run folder or checkpoint, or the run.
        rows: texts, or pairs; labels are only needed for the accuracy.
        methods: keys of `METHODS`; not given: all that work on the run, but LIME and SHAP. "random", the floor, always
            takes part.
        measures: what is measured.
        precision: another one than the run's.
        progress: told what is under way.

    Raises:
        ConfigError: a method or erasure that does not exist or not work on this run; or the run predicts scores.
        DataError: no row has an ordinary token.
    """
    measures = measures or Measures()
    saved = run if isinstance(run, SavedRun) else SavedRun.load(run)
    names = list(dict.fromkeys([*(default_methods(saved) if methods is None else methods), FLOOR]))
    check(saved, names, measures)
    with attention_by(saved.model):
        explainer, kept = readable(saved, rows, precision)
        tell = progress or (lambda what: None)
        ranks = {name: rank(explainer, name, measures, tell) for name in names}
        scores, by_erasure = [], {}
        for erasure in measures.erasures:
            tell(f"erasing by {erasure}")
            with explainer.probe.evaluating():
                found = _Erasing(explainer.probe, erasure, ranks, measures)
                scores += found.scores()
            by_erasure |= {(name, erasure): own[0] for name, own in found.falls.items()}
    return Found(_report(saved, explainer, kept, len(rows), measures, ranks, scores), kept, ranks, by_erasure)


def check(saved: SavedRun, methods: Sequence[str], measures: Measures) -> None:
    """See that all this can be measured.

    Raises:
        ConfigError: with every problem found.
    """
    problems = []
    if saved.label_space.task_type == "regression":
        problems.append(
            f"{saved.folder}: predicts a score; expected a run that predicts classes, whose probabilities can fall."
        )
    for erasure in measures.erasures:
        if erasure not in ERASURES:
            known = ", ".join(ERASURES)
            problems.append(f"erasures: got {erasure!r}, expected some of {known}.{did_you_mean(erasure, ERASURES)}")
    if not measures.erasures:
        problems.append(f"erasures: got none, expected some of {', '.join(ERASURES)}.")
    for name in methods:
        try:
            method_for(name, saved.model)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def readable(saved: SavedRun, rows: TextRows, precision: str | None) -> tuple[Explainer, TextRows]:
    """An explainer of the rows that have an ordinary token, and these rows.

    Raises:
        DataError: none has.
    """
    explainer = Explainer(saved, rows, precision=precision)
    features = explainer.probe.features
    kept = [row for row in range(len(rows)) if len(features.ordinary_positions(row))]
    if not kept:
        raise DataError(f"{rows.source}: got {len(rows)} texts, expected at least one with a word in it.")
    if len(kept) == len(rows):
        return explainer, rows
    rows = rows.take(kept)
    return Explainer(saved, rows, precision=precision), rows


def rank(explainer: Explainer, name: str, measures: Measures, tell: Progress) -> Ranked:
    """What a method says of the predicted class of each row, of the floor several times over."""
    tell(f"scores by {name}")
    settings = measures.settings
    seeds = [settings.seed + draw for draw in range(measures.draws if name == FLOOR else 1)]
    draws = [explainer.attributions(name, settings=replace(settings, seed=seed)) for seed in seeds]
    features = explainer.probe.features
    orders = [
        [
            ranked(found.scores, features.ordinary_positions(row), seed, row)
            for row, found in enumerate(attributions)
        ]
        for seed, attributions in zip(seeds, draws, strict=True)
    ]
    return Ranked(draws[0], orders)


class _Erasing:
    """All methods under one erasure.

    Attributes:
        falls: of each method, for each draw.
    """

    def __init__(self, probe: Probe, erasure: str, ranks: dict[str, Ranked], measures: Measures) -> None:
        self._erasure, self._ranks, self._measures = erasure, ranks, measures
        self._eraser = Eraser(probe, erasure)
        self._target_N = np.array([found.target for found in next(iter(ranks.values())).attributions])
        rows = np.arange(len(self._target_N))
        self.falls = {
            name: [falls(self._eraser, rows, orders, self._target_N) for orders in own.orders]
            for name, own in ranks.items()
        }
        places = [probe.features.ordinary_positions(int(row)) for row in rows]
        self._short = np.array([row for row in rows if len(places[row]) <= measures.beam_tokens], dtype=np.int64)
        self._limits: Limits | None = None
        if measures.beam and len(self._short):
            chosen, targets = [places[row] for row in self._short], self._target_N[self._short]
            self._limits = find_limits(self._eraser, self._short, chosen, targets, beam=measures.beam)

    def scores(self) -> list[MethodScore]:
        """A line a method."""
        first = next(iter(self._ranks))
        base_N = _mean([own.comprehensiveness_NK for own in self.falls[first]]).mean(axis=1)
        return [self._score(name, None if name == first else base_N) for name in self._ranks]

    def _score(self, name: str, base_N: np.ndarray | None) -> MethodScore:
        seed = self._measures.settings.seed
        comprehensiveness_NK = _mean([own.comprehensiveness_NK for own in self.falls[name]])
        sufficiency_NK = _mean([own.sufficiency_NK for own in self.falls[name]])
        whole_N = comprehensiveness_NK.mean(axis=1)
        bins = {
            "comprehensiveness": comprehensiveness_NK.mean(axis=0).tolist(),
            "sufficiency": sufficiency_NK.mean(axis=0).tolist(),
        }
        line = MethodScore(
            name,
            METHODS[name].signed,
            self._erasure,
            mean_interval(whole_N, seed),
            mean_interval(sufficiency_NK.mean(axis=1), seed),
            None if base_N is None else mean_interval(whole_N - base_N, seed),
            bins,
        )
        if self._limits is None:
            return line
        forwards_N, backwards_N = (self._normalised(name, step) for step in (1, -1))
        return replace(
            line,
            naopc_comprehensiveness=mean_interval(forwards_N, seed),
            naopc_sufficiency=mean_interval(backwards_N, seed),
            naopc_rows=int(np.isfinite(forwards_N).sum()),
        )

    def _normalised(self, name: str, step: int) -> np.ndarray:
        """(short rows,) the normalised form of the order, or turned round; the mean over draws."""
        assert self._limits is not None
        targets = self._target_N[self._short]
        draws = [
            mean_falls(self._eraser, self._short, [orders[row][::step] for row in self._short], targets)
            for orders in self._ranks[name].orders
        ]
        return _mean([self._limits.normalised(own) for own in draws])


def _mean(draws: list[np.ndarray]) -> np.ndarray:
    return np.mean(draws, axis=0)


def _report(
    saved: SavedRun,
    explainer: Explainer,
    rows: TextRows,
    given: int,
    measures: Measures,
    ranks: dict[str, Ranked],
    scores: list[MethodScore],
) -> FaithfulnessReport:
    accuracy = None
    if rows.labels is not None:
        first = next(iter(ranks.values())).attributions
        accuracy = float(np.mean([found.target == label for found, label in zip(first, rows.labels, strict=True)]))
    return FaithfulnessReport(
        run=str(saved.folder),
        rows=len(rows),
        left_out=given - len(rows),
        accuracy=accuracy,
        shares=list(SHARES),
        draws=measures.draws,
        beam=measures.beam,
        beam_tokens=measures.beam_tokens,
        precision=explainer.probe.accelerator.mixed_precision,
        seed=measures.settings.seed,
        scores=scores,
        costs=[
            MethodCost(
                name,
                float(np.mean([found.passes for found in own.attributions])),
                float(np.mean([found.seconds for found in own.attributions])),
            )
            for name, own in ranks.items()
        ],
        extra={},
    )
