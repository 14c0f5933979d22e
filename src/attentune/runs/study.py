"""The trials of a search: an Optuna study in a journal file, which only the command of the search writes.

A trial is sampled in memory, given the trials so far, and then added to the study in a single operation. So a killed
command leaves no incomplete trial, and a sample depends only on the seed and the earlier trials, not on the process.
Workers read the journal to decide whether their trial is pruned.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from attentune.errors import CheckpointError
from attentune.runs.selection import SelectionCriterion, TrialOutcome
from attentune.runs.space import Dimension, Space
from attentune.io.files import storage_errors
from attentune.seeding import derive_key, numpy_generator

JOURNAL_FILE = "trials.journal"
_STUDY = "search trials"
SAMPLERS, PRUNERS = ("grid", "random", "tpe"), ("none", "median", "halving")
# The minimum number of finished trials for an estimate of importance.
MIN_FOR_IMPORTANCE = 10
# What Optuna raises on invalid lines of a journal.
_INVALID_JOURNAL = (ValueError, LookupError, AssertionError, TypeError, AttributeError, RecursionError, OverflowError)
_STATES = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "running",
}


@dataclass(frozen=True)
class SamplerConfig:
    """How trials are sampled and pruned."""

    sampler: str = "tpe"  # one of `SAMPLERS`
    pruner: str = "none"  # one of `PRUNERS`
    startup: int = 5  # the number of finished trials before TPE models them, and before the median pruner prunes
    trials: int | None = None  # the number of trials; None for the whole grid
    seed: int = 42  # the seed of the sampler


class SearchStudy:
    """The trials of a search."""

    def __init__(
        self,
        folder: Path,
        space: Space,
        sampler_config: SamplerConfig,
        criterion: SelectionCriterion,
        *,
        read_only: bool = False,
    ) -> None:
        self.folder, self.space, self.sampler_config, self.criterion = folder, space, sampler_config, criterion
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._direction: Literal["maximize", "minimize"] = "maximize" if criterion.greater_is_better else "minimize"
        self._journal = folder / JOURNAL_FILE
        with self._errors():
            if not read_only:
                _drop_torn_line(self._journal)
            storage = JournalStorage(JournalFileBackend(str(self._journal), lock_obj=_NoLock()))  # type: ignore[arg-type]
            if read_only:
                self._study = optuna.load_study(study_name=_STUDY, storage=storage, pruner=_pruner(sampler_config))
            else:
                self._study = optuna.create_study(
                    study_name=_STUDY,
                    storage=storage,
                    sampler=optuna.samplers.RandomSampler(seed=0),
                    pruner=_pruner(sampler_config),
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
        wanted = self.sampler_config.trials
        limits = [number for number in (wanted, None if points is None else len(points)) if number is not None]
        return max(min(limits), len(self._by_name()))

    def trials(self) -> list[TrialOutcome]:
        """Return all trials so far, in order."""
        with self._errors():
            return [self._outcome(name, trial) for name, trial in self._by_name().items()]

    def results(self, name: str) -> dict[int, dict[str, Any]]:
        """Return the results of a trial's runs by seed: status, scores, seconds, message."""
        with self._errors():
            return _results(self._by_name()[name])

    def note(self, name: str, seed: int, result: dict[str, Any]) -> None:
        """Store the result of a run."""
        with self._errors():
            self._live(name).set_user_attr(f"seed {seed}", result)

    def finish(self, name: str, status: str, value: float | None = None) -> None:
        """End a trial as "done" (with its ranking value), "pruned" or "failed"."""
        state = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}[status]
        with self._errors():
            self._study.tell(self._by_name()[name].number, value, state)

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
        known = [trial for trial in self._study.get_trials() if "dropped" not in trial.user_attrs]
        tried = {_key(trial.params) for trial in known}
        points = self.space.points()
        left = None if points is None else [point for point in points if _key(point) not in tried]
        key = ("search", self.sampler_config.sampler, self.sampler_config.seed, len(tried))
        if self.sampler_config.sampler != "grid":
            drawn = optuna.create_study(direction=self._direction, sampler=self._sampler(derive_key(*key) % 2**32))
            drawn.add_trials(known)
            params = drawn.ask(_distributions(self.space)).params
            if left is None or _key(params) not in tried:
                return params
        assert left  # fewer trials than points have been sampled
        return left[int(numpy_generator(*key).integers(len(left)))]

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        if self.sampler_config.sampler == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            startup = self.sampler_config.startup
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)

    def _add(self, params: Mapping[str, Any], **attributes: str) -> None:
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=dict(params),
                distributions=_distributions(self.space),
                user_attrs=attributes,
            )
        )

    def _by_name(self) -> dict[str, FrozenTrial]:
        """Return the newest trial of each name."""
        return {self._name(trial): trial for trial in self._study.get_trials(deepcopy=False)}

    @staticmethod
    def _name(trial: FrozenTrial) -> str:
        return str(trial.user_attrs.get("name", f"trial-{trial.number + 1:04d}"))

    def _live(self, name: str) -> Trial:
        return Trial(self._study, self._by_name()[name]._trial_id)

    def _outcome(self, name: str, trial: FrozenTrial) -> TrialOutcome:
        results = [value for _, value in sorted(_results(trial).items())]
        return TrialOutcome(
            name=name,
            params=dict(trial.params),
            settings=self.space.settings_of(trial.params),
            status=_STATES[trial.state],
            scores=tuple(score for result in results for score in result["scores"]),
            value=trial.value if trial.state == TrialState.COMPLETE else None,
            seconds=sum(result["seconds"] for result in results),
            message=next((result["message"] for result in results if result["message"]), ""),
        )


def _results(trial: FrozenTrial) -> dict[int, dict[str, Any]]:
    return {int(key.split()[1]): value for key, value in trial.user_attrs.items() if key.startswith("seed ")}


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


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    return {dimension.name: _distribution(dimension) for dimension in space.dimensions}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    if isinstance(dimension.low, int) and isinstance(dimension.high, int):
        return IntDistribution(dimension.low, dimension.high, log=dimension.log, step=int(dimension.step or 1))
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step)


def _pruner(sampler_config: SamplerConfig) -> optuna.pruners.BasePruner:
    if sampler_config.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=sampler_config.startup)
    if sampler_config.pruner == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    return optuna.pruners.NopPruner()
