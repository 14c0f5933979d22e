"""The trials of a search: an Optuna study in the same storage as the queue of their runs.

A trial is sampled in memory, given the trials so far, and then added to the study in a single operation. So a killed
command leaves no incomplete trial, and a sample depends only on the seed and the earlier trials, not on the process.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from attentune.experiments.execution.queue_storage import (
    StorageConfig,
    open_storage,
    queue_storage_errors,
    without_warnings,
)
from attentune.experiments.search.selection import SelectionCriterion, TrialOutcome
from attentune.experiments.search.space import Dimension, Space
from attentune.seeding import derive_key, numpy_generator

SAMPLERS, PRUNERS = ("grid", "random", "tpe"), ("none", "median", "halving")
# The minimum number of finished trials for an estimate of importance.
MIN_FOR_IMPORTANCE = 10
_STATES = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "running",
}


@dataclass(frozen=True)
class SamplerConfig:
    """How trials are sampled and pruned.

    Attributes:
        sampler: one of `SAMPLERS`.
        pruner: one of `PRUNERS`.
        startup: the number of finished trials before TPE models them, and before the median pruner prunes.
        trials: the number of trials; None for the whole grid.
        seed: the seed of the sampler.
    """

    sampler: str = "tpe"
    pruner: str = "none"
    startup: int = 5
    trials: int | None = None
    seed: int = 42


class SearchStudy:
    """The trials of a search.

    Args:
        storage_config: where the queue is stored; the name of this study is that of the queue with " trials" appended.
        space: the search space.
        sampler_config: how trials are sampled and pruned.
        criterion: how trials are ranked.

    Raises:
        ConfigError: the URL cannot be used.
        StorageError: the storage cannot be reached, read or written to.
    """

    def __init__(
        self, storage_config: StorageConfig, space: Space, sampler_config: SamplerConfig, criterion: SelectionCriterion
    ) -> None:
        self.storage_config, self.space, self.sampler_config, self.criterion = (
            storage_config,
            space,
            sampler_config,
            criterion,
        )
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._direction: Literal["maximize", "minimize"] = "maximize" if criterion.greater_is_better else "minimize"
        with queue_storage_errors(storage_config):
            self._study = optuna.create_study(
                study_name=f"{storage_config.study} trials",
                storage=open_storage(storage_config),
                sampler=optuna.samplers.RandomSampler(seed=0),
                pruner=_pruner(sampler_config),
                direction=self._direction,
                load_if_exists=True,
            )

    def register(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the search's description that is stored; store this one if there is none yet."""
        with queue_storage_errors(self.storage_config):
            known = self._study.user_attrs.get("search")
            if known is None:
                self._study.set_user_attr("search", json.dumps(content))
            return content if known is None else json.loads(known)

    @property
    def total(self) -> int:
        """The number of trials of the complete search, at most one per point: a repetition would score the same."""
        points = self.space.points()
        wanted = self.sampler_config.trials
        limits = [number for number in (wanted, None if points is None else len(points)) if number is not None]
        return max(min(limits), len(self._by_name()))

    def trials(self) -> list[TrialOutcome]:
        """Return all trials so far, in order."""
        with queue_storage_errors(self.storage_config):
            return [self._outcome(name, trial) for name, trial in self._by_name().items()]

    def results(self, name: str) -> dict[int, dict[str, Any]]:
        """Return the results of a trial's runs by seed: status, scores, seconds, message."""
        with queue_storage_errors(self.storage_config):
            return _results(self._by_name()[name])

    def note(self, name: str, seed: int, result: dict[str, Any]) -> None:
        """Store the result of a run."""
        with queue_storage_errors(self.storage_config), _unless_finished():
            self._live(name).set_user_attr(f"seed {seed}", result)

    def finish(self, name: str, status: str, value: float | None = None) -> None:
        """End a trial as "done" (with its ranking value), "pruned" or "failed"."""
        state = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}[status]
        with queue_storage_errors(self.storage_config), _unless_finished():
            self._study.tell(self._by_name()[name].number, value, state)

    def add(self) -> bool:
        """Sample another trial; return False if there are enough."""
        with queue_storage_errors(self.storage_config):
            if len(self._by_name()) >= self.total:
                return False
            mark = uuid.uuid4().hex
            self._add(self._draw(), mark=mark)
            trials = self._study.get_trials(deepcopy=False)
            mine = next(trial for trial in trials if trial.user_attrs.get("mark") == mark)
            older = {_key(trial.params) for trial in trials if trial.number < mine.number}
            if _key(mine.params) in older:  # another machine has sampled the same point at the same time
                Trial(self._study, mine._trial_id).set_user_attr("dropped", True)
                self._study.tell(mine.number, state=TrialState.FAIL)
            return True

    def retry(self, name: str) -> None:
        """Add a failed trial again, at the same point."""
        with queue_storage_errors(self.storage_config):
            self._add(self._by_name()[name].params, name=name)

    def report(self, name: str, step: int, score: float) -> bool:
        """Report an intermediate score of a trial's first run; return whether the trial should be pruned.

        A score that a resumed run reports again is ignored.

        Args:
            name: the trial's name.
            step: the number of scores of the run so far, including this one.
            score: the score.
        """
        with queue_storage_errors(self.storage_config):
            trial = self._live(name)
            if step not in self._by_name()[name].intermediate_values:
                trial.report(score, step)
            return trial.should_prune()

    def importance(self) -> tuple[dict[str, float] | None, str]:
        """Return the share of the ranking values' variance that each dimension explains, highest first.

        Computed by functional ANOVA over random forests. Returns None, with the reason, if it cannot be estimated.
        """
        with queue_storage_errors(self.storage_config):
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
        return without_warnings(
            optuna.samplers.TPESampler, seed=seed, n_startup_trials=self.sampler_config.startup, constant_liar=True
        )

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
        trials = self._study.get_trials(deepcopy=False)
        return {self._name(trial): trial for trial in trials if "dropped" not in trial.user_attrs}

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


@contextlib.contextmanager
def _unless_finished() -> Any:
    """Suppress the error if another command has ended the trial in the meantime."""
    with contextlib.suppress(UpdateFinishedTrialError, ValueError):
        yield


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
