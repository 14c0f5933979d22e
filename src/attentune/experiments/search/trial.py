"""Training of a search's runs in a worker process: the rows, and pruning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from attentune.config import Config
from attentune.data.dataset import TaskData
from attentune.data.load import load_data
from attentune.data.splits import stratified_sample, stratified_split
from attentune.errors import DataError
from attentune.experiments.comparison.grid import Run
from attentune.experiments.execution.queue_storage import StorageConfig
from attentune.experiments.search.selection import SelectionCriterion
from attentune.experiments.search.space import Space
from attentune.experiments.search.study import SamplerConfig, SearchStudy
from attentune.results import RunResult
from attentune.training.callbacks import Scores, TrainingCallback
from attentune.training.signals import Pruned
from attentune.training.state import TrainingState

SCORED = ("train", "dev")


@dataclass(frozen=True)
class Rows:
    """The rows that a search trains on and scores.

    Attributes:
        score_on: "train" scores on held-out training rows; "dev", on the task's validation rows.
        share: the share of the training rows that is held out.
        seed: the seed of the split and of subsamples.
    """

    score_on: str = "train"
    share: float = 0.2
    seed: int = 42

    def load(self, config: Config) -> TaskData:
        """Load the rows: the same for every trial and seed, without extra files, which `train` adds.

        Raises:
            DataError: as `load_data`, or there are too few labelled rows to hold some out.
        """
        data_config = replace(config.data, extra_train_files=None, extra_train_weights=None)
        if self.score_on == "dev":
            return load_data(data_config, seed=self.seed, splits=("train", "validation"))
        data = load_data(data_config, seed=self.seed, splits=("train",))
        train = data.splits["train"]
        if train.labels is None or len(train) < 2:
            raise DataError(f"{data.name}: has {len(train)} labelled training rows, so none can be cut to score on.")
        remaining, held_out = stratified_split(train.labels, self.share, self.seed, "search")
        scored, limit = train.take(held_out), config.data.max_eval_samples
        if limit is not None and limit < len(scored):
            scored = scored.take(stratified_sample(scored.labels, limit, self.seed, "part", "search"))
        note = (
            f"Trials are scored on {len(scored)} of the {len(train)} training rows, cut from them (search_share"
            f" {self.share:g}, stratified, seed {self.seed}), and trained on {len(remaining)}. Dev is not looked at."
        )
        return replace(data, splits={"train": train.take(remaining), "validation": scored}, notes=(*data.notes, note))


class SearchTrainer:
    """Trains the runs of a search in a worker process. Its arguments are plain values, because they come from JSON.

    Args:
        storage_config: where the search's study is stored.
        rows: the fields of `Rows`.
        sampler: the fields of `SamplerConfig`.
        criterion: the fields of `SelectionCriterion`.
        first_seed: the seed whose runs report to the pruner.
    """

    def __init__(
        self,
        storage_config: StorageConfig,
        *,
        rows: Mapping[str, Any],
        sampler: Mapping[str, Any],
        criterion: Mapping[str, Any],
        first_seed: int,
    ) -> None:
        self._first_seed, self._rows = first_seed, Rows(**rows)
        self._criterion, config = SelectionCriterion(**criterion), SamplerConfig(**sampler)
        has_pruner = config.pruner != "none"
        self._study = SearchStudy(storage_config, Space(), config, self._criterion) if has_pruner else None

    def __call__(self, run: Run, config: Config) -> RunResult:
        """Train a run.

        Raises:
            Pruned: the pruner stops the trial.
        """
        from attentune.training.train import train

        callbacks = []
        if self._study is not None and run.seed == self._first_seed:
            callbacks.append(PruningCallback(self._study, run.method, config, self._criterion.metric))
        return train(config, data=self._rows.load(config), callbacks=callbacks, with_baselines=False)


class PruningCallback(TrainingCallback):
    """Reports each validation score to the study, and raises `Pruned` if the pruner stops the trial.

    Args:
        study: the search's trials.
        trial: the trial's name.
        config: the run's settings.
        metric: the metric that is reported.
    """

    def __init__(self, study: SearchStudy, trial: str, config: Config, metric: str) -> None:
        self._study, self._trial, self._config, self._metric = study, trial, config, metric

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        score = next(iter(scores.values()))[self._metric]
        count = _times_scored(state, self._config)
        if self._study.report(self._trial, count, score) and not is_last:
            times = "once" if count == 1 else f"{count} times"
            raise Pruned(f"{self._metric} {score:.4f} when scored {times}, worse than others by then")


def _times_scored(state: TrainingState, config: Config) -> int:
    """Return the number of validation scores that a run has had, including those before it was resumed."""
    if config.training.eval_strategy == "steps":
        return -(-state.step // (config.training.eval_steps or 1))
    return state.epoch + (state.step_in_epoch > 0)
