"""Are explanations true? What erasing the tokens that they point at does to the very model they explain."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attentune.attribution.registry import METHODS, method_for
from attentune.config.parse import did_you_mean
from attentune.data.dataset import TextRows
from attentune.errors import ConfigError, DataError
from attentune.explain.explainer import Explainer
from attentune.explain.faithfulness.erasing import Erasing
from attentune.explain.faithfulness.erasure import ERASURES, SHARES, ProbabilityDrops
from attentune.explain.faithfulness.ordering import RANDOM_BASELINE, Measures, Progress, Ranked, rank
from attentune.explain.faithfulness.results import FaithfulnessReport, MethodCost, MethodScore
from attentune.inference.predictor import Predictor
from attentune.models.attention import attention_by

# Too dear to be asked for by nobody.
_EXPENSIVE = ("lime", "shap")


@dataclass(frozen=True)
class FaithfulnessResult:
    """The report, and what stands behind it.

    Attributes:
        report: means and intervals.
        rows: the texts that were measured.
        kept: their numbers among those given.
        ranked: by method.
        falls: by method and erasure; of the first draw.
        explainer: of these texts.
    """

    report: FaithfulnessReport
    rows: TextRows
    kept: list[int]
    explainer: Explainer
    ranked: dict[str, Ranked]
    probability_drops: dict[tuple[str, str], ProbabilityDrops]

    @staticmethod
    def signed(name: str) -> bool:
        """Whether a method's scores have a sign."""
        return METHODS[name].signed


def default_methods(saved: Predictor) -> tuple[str, ...]:
    """The methods that work on this run, but for those that are very dear."""
    has_captum = importlib.util.find_spec("captum") is not None
    return tuple(
        name
        for name, method in METHODS.items()
        if name not in _EXPENSIVE
        and (not method.needs_gate or saved.model.token_gate is not None)
        and (not method.needs_captum or has_captum)
    )


def measure_faithfulness(
    run: str | Path | Predictor,
    rows: TextRows,
    *,
    methods: Sequence[str] | None = None,
    measures: Measures | None = None,
    precision: str | None = None,
    progress: Progress | None = None,
) -> FaithfulnessResult:
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
    saved = run if isinstance(run, Predictor) else Predictor.load(run)
    names = list(dict.fromkeys([*(default_methods(saved) if methods is None else methods), RANDOM_BASELINE]))
    check(saved, names, measures)
    with attention_by(saved.model):
        explainer, kept = readable(saved, rows, precision)
        own_rows = rows if len(kept) == len(rows) else rows.take(kept)
        tell = progress or (lambda what: None)
        ranks = {name: rank(explainer, name, measures, tell) for name in names}
        scores: list[MethodScore] = []
        by_erasure: dict[tuple[str, str], ProbabilityDrops] = {}
        for erasure in measures.erasures:
            tell(f"erasing by {erasure}")
            with explainer.scorer.evaluating():
                found = Erasing(explainer.scorer, erasure, ranks, measures)
                scores += found.scores()
            by_erasure |= {(name, erasure): own[0] for name, own in found.probability_drops.items()}
    report = _report(saved, explainer, own_rows, len(rows), measures, ranks, scores)
    return FaithfulnessResult(report, own_rows, kept, explainer, ranks, by_erasure)


def check(saved: Predictor, methods: Sequence[str], measures: Measures) -> None:
    """See that all this can be measured.

    Raises:
        ConfigError: with every problem found.
    """
    problems = []
    if saved.label_space.task_type == "regression":
        problems.append(
            f"{saved.folder}: predicts a score; expected a run that predicts classes, whose probabilities can fall."
        )
    if saved.label_space.is_multilabel:
        problems.append(
            f"{saved.folder}: predicts several labels at once; expected a run that predicts one class, of which the"
            " measures tell how far its probability falls."
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


def readable(saved: Predictor, rows: TextRows, precision: str | None) -> tuple[Explainer, list[int]]:
    """An explainer of the rows that have an ordinary token, and their numbers.

    Raises:
        DataError: none has.
    """
    explainer = Explainer(saved, rows, precision=precision)
    features = explainer.scorer.features
    kept = [row for row in range(len(rows)) if len(features.non_special_positions(row))]
    if not kept:
        raise DataError(f"{rows.source}: got {len(rows)} texts, expected at least one with a word in it.")
    if len(kept) == len(rows):
        return explainer, kept
    return Explainer(saved, rows.take(kept), precision=precision), kept


def _report(
    saved: Predictor,
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
        precision=explainer.scorer.accelerator.mixed_precision,
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
    )
