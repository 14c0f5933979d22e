"""The trials of a search: an Optuna study in a journal file, which only the command of the search writes.

A trial is sampled in memory, given the trials so far, and then added to the study in a single operation. So a killed
command leaves no incomplete trial, and a sample depends only on the seed and the earlier trials, not on the process.
Workers read the journal to decide whether their trial is pruned.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from attentune.errors import CheckpointError
from attentune.io.files import storage_errors
from attentune.runs.search_settings import SamplerConfig, SelectionCriterion
from attentune.runs.space import Dimension, Space
from attentune.seeding import derive_key, numpy_generator

JOURNAL_FILE = "trials.journal"
_STUDY = "search trials"
# The minimum number of finished trials for an estimate of importance.
MIN_FOR_IMPORTANCE = 10
# What Optuna raises on invalid lines of a journal.
_INVALID_JOURNAL = (ValueError, LookupError, AssertionError, TypeError, AttributeError, RecursionError, OverflowError)
_STATES = {TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of a trial."""

    name: str  # "trial-0001" and so on
    params: dict[str, Any]  # the point of the space
    settings: dict[str, Any]  # the point's settings, by dotted name
    status: str  # "done", "pruned", "failed" or "running"
    scores: tuple[float, ...] = ()  # the scores of each seed, or of each seed's parts
    value: float | None = None  # the ranking value; None if the trial is not done or its score is undefined
    seconds: float = 0.0  # the wall time of all its runs
    message: str = ""  # why it failed, or its score when it was pruned

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def std(self) -> float | None:
        """The standard deviation of its scores (n - 1)."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


def ranked(
    trials: Sequence[TrialOutcome],
    criterion: SelectionCriterion,
    *,
    loss: Callable[[TrialOutcome], float | None] = lambda trial: None,
) -> list[TrialOutcome]:
    """Sort trials: best first, of equal values the lowest loss first, those without a value last."""
    order = {"done": 0, "pruned": 1, "failed": 2, "running": 3}
    times = Counter(trial.value for trial in trials)

    def key(trial: TrialOutcome) -> tuple[Any, ...]:
        if trial.value is None:
            return (True, 0.0, math.inf, order[trial.status])
        known = loss(trial) if times[trial.value] > 1 else None
        value = -trial.value if criterion.greater_is_better else trial.value
        return (False, value, math.inf if known is None else known, order[trial.status])

    return sorted(trials, key=key)


class SearchStudy:
    """The trials of a search."""

    def __init__(
        self,
        folder: Path,
        space: Space,
        sampling: SamplerConfig,
        criterion: SelectionCriterion,
        *,
        read_only: bool = False,
    ) -> None:
        self.folder, self.space, self.sampling, self.criterion = folder, space, sampling, criterion
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._direction: Literal["maximize", "minimize"] = "maximize" if criterion.greater_is_better else "minimize"
        self._journal = folder / JOURNAL_FILE
        with self._errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            if not read_only:
                _drop_torn_line(self._journal)
            storage = JournalStorage(JournalFileBackend(str(self._journal), lock_obj=_NoLock()))  # type: ignore[arg-type]
            if read_only:
                self._study = optuna.load_study(study_name=_STUDY, storage=storage, pruner=_pruner(sampling))
            else:
                self._study = optuna.create_study(
                    study_name=_STUDY,
                    storage=storage,
                    sampler=optuna.samplers.RandomSampler(seed=0),
                    pruner=_pruner(sampling),
                    direction=self._direction,
                    load_if_exists=True,
                )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert Optuna's exceptions to errors with a message for the user."""
        with storage_errors(self._journal):
            try:
                yield
            except _INVALID_JOURNAL as error:
                raise CheckpointError(
                    f"{self._journal}: is damaged ({repr(error)[:200]}). Delete it; what is recorded stays, and the"
                    " same command goes on."
                ) from error

    @property
    def total(self) -> int:
        """The number of trials of the complete search, at most one per point: a repetition would score the same."""
        points = self.space.points()
        wanted = (self.sampling.trials, None if points is None else len(points))
        limits = [number for number in wanted if number is not None]
        return max(min(limits), len(self._by_name()))

    def trials(self) -> list[TrialOutcome]:
        """Return all trials so far, in order; `scores`, `seconds` and `message` of those that have ended."""
        with self._errors():
            return [
                TrialOutcome(
                    name=name,
                    params=dict(trial.params),
                    settings=self.space.settings_of(trial.params),
                    status=_STATES.get(trial.state, "running"),
                    value=trial.value if trial.state == TrialState.COMPLETE else None,
                    **(_facts(trial) if trial.state in _STATES else {}),
                )
                for name, trial in self._by_name().items()
            ]

    def finish(
        self,
        name: str,
        status: str,
        value: float | None = None,
        *,
        scores: Sequence[float] = (),
        seconds: float = 0.0,
        message: str = "",
    ) -> None:
        """End a trial as "done" (with its ranking value), "pruned" or "failed"."""
        state = next(state for state, known in _STATES.items() if known == status)
        with self._errors():
            live = self._live(name)
            live.set_user_attr("outcome", {"scores": [*scores], "seconds": seconds, "message": message})
            self._study.tell(live.number, value, state)

    def add(self) -> bool:
        """Sample another trial; return False if there are enough."""
        with self._errors():
            if len(self._by_name()) >= self.total:
                return False
            self._add(self._draw())
            return True

    def retry(self, name: str) -> None:
        """Add a failed trial again, at the same point."""
        with self._errors():
            self._add(self._by_name()[name].params, name=name)

    def report(self, name: str, scores: Mapping[int, float]) -> None:
        """Store the scores during a trial's first run, of which some may be stored already."""
        with self._errors():
            trial = self._live(name)
            for step in sorted(scores.keys() - self._by_name()[name].intermediate_values.keys()):
                trial.report(scores[step], step)
                trial.should_prune()  # halving stores what the trial reached

    def is_worse(self, name: str, scores: Mapping[int, float]) -> bool:
        """Return whether a running trial should be pruned. Nothing is stored."""
        with self._errors():
            own = self._by_name()[name]
            copy = optuna.create_study(direction=self._direction, pruner=self._study.pruner)
            copy.add_trials([trial for trial in self._study.get_trials(deepcopy=False) if trial.number != own.number])
            copy.add_trial(create_trial(state=TrialState.RUNNING, params=own.params, distributions=own.distributions))
            trial = Trial(copy, copy.get_trials(deepcopy=False)[-1]._trial_id)
            is_worse = False
            for step, score in sorted({**own.intermediate_values, **scores}.items()):
                trial.report(score, step)
                is_worse = trial.should_prune()
            return is_worse

    def importance(self) -> tuple[dict[str, float] | None, str]:
        """Return the share of the ranking values' variance that each dimension explains, highest first.

        Computed by functional ANOVA over random forests. Returns None, with the reason, if it cannot be estimated.
        """
        with self._errors():
            done = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if len(done) < MIN_FOR_IMPORTANCE:
                return None, f"{len(done)} finished trials are too few; at least {MIN_FOR_IMPORTANCE} are needed"
            if len({trial.value for trial in done}) == 1:
                return None, "all finished trials have the same score"
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            return optuna.importance.get_param_importances(self._study, evaluator=evaluator), ""

    def _draw(self) -> dict[str, Any]:
        """Return the next point, from Optuna's sampler; for a grid, or if it has been tried, a random untried point."""
        known = self._study.get_trials()
        tried = {_key(trial.params) for trial in known}
        points = self.space.points()
        left = None if points is None else [point for point in points if _key(point) not in tried]
        key = ("search", self.sampling.sampler, self.sampling.seed, len(tried))
        if self.sampling.sampler != "grid":
            drawn = optuna.create_study(direction=self._direction, sampler=self._sampler(derive_key(*key) % 2**32))
            drawn.add_trials(known)
            params = drawn.ask({part.name: _distribution(part) for part in self.space.dimensions}).params
            if left is None or _key(params) not in tried:
                return params
        assert left  # fewer trials than points have been sampled
        return left[int(numpy_generator(*key).integers(len(left)))]

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        if self.sampling.sampler == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=self.sampling.startup, constant_liar=True)

    def _add(self, params: Mapping[str, Any], **attributes: str) -> None:
        distributions = {part.name: _distribution(part) for part in self.space.dimensions}
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING, params=dict(params), distributions=distributions, user_attrs=attributes
            )
        )

    def _by_name(self) -> dict[str, FrozenTrial]:
        """Return the newest trial of each name."""
        trials = self._study.get_trials(deepcopy=False)
        return {str(one.user_attrs.get("name", f"trial-{one.number + 1:04d}")): one for one in trials}

    def _live(self, name: str) -> Trial:
        return Trial(self._study, self._by_name()[name]._trial_id)


def _facts(trial: FrozenTrial) -> dict[str, Any]:
    outcome = trial.user_attrs.get("outcome", {})
    return {**outcome, "scores": tuple(outcome.get("scores", ()))}


def _key(params: Mapping[str, Any]) -> str:
    return json.dumps(params, sort_keys=True)


class _NoLock:
    """The lock of a journal that a single process writes."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Do nothing."""


def _drop_torn_line(journal: Path) -> None:
    """Remove the last line of a journal if a killed process was writing it."""
    content = journal.read_bytes() if journal.exists() else b""
    if content and not content.endswith(b"\n"):
        with journal.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    if isinstance(dimension.low, int) and isinstance(dimension.high, int):
        return IntDistribution(dimension.low, dimension.high, log=dimension.log, step=int(dimension.step or 1))
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step)


def _pruner(sampling: SamplerConfig) -> optuna.pruners.BasePruner:
    if sampling.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=sampling.startup)
    if sampling.pruner == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    return optuna.pruners.NopPruner()
