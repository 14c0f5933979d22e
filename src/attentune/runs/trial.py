"""Training of a search's runs in a worker process: the rows, and pruning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from attentune.config import Config
from attentune.data.dataset import TaskData
from attentune.data.load import load_data
from attentune.data.splits import split_rows, stratified_sample
from attentune.errors import DataError
from attentune.runs.grid import Run
from attentune.runs.selection import SelectionCriterion
from attentune.runs.space import Space
from attentune.runs.study import SamplerConfig, SearchStudy
from attentune.results import RunResult
from attentune.training.callbacks import Scores, TrainingCallback
from attentune.training.signals import Pruned
from attentune.training.state import TrainingState

SCORED = ("train", "dev")


@dataclass(frozen=True)
class Rows:
    """The rows that a search trains on and scores."""

    score_on: str = "train"  # "train" scores on held-out training rows; "dev", on the task's validation rows
    share: float = 0.2  # the share of the training rows that is held out
    seed: int = 42  # the seed of the split and of subsamples

    def load(self, config: Config) -> TaskData:
        """Load the rows: the same for every trial and seed, without extra files, which `train` adds."""
        data_config = replace(config.data, extra_train_files=None, extra_train_weights=None)
        if self.score_on == "dev":
            return load_data(data_config, seed=self.seed, splits=("train", "validation"))
        data = load_data(data_config, seed=self.seed, splits=("train",))
        train = data.splits["train"]
        if train.labels is None or len(train) < 2:
            raise DataError(f"{data.name}: has {len(train)} labelled training rows, so none can be cut to score on.")
        remaining, held_out, kept = split_rows(train, self.share, self.seed, "search")
        scored, limit = train.take(held_out), config.data.max_eval_samples
        if limit is not None and limit < len(scored):
            scored = scored.take(stratified_sample(scored.labels, limit, self.seed, "part", "search"))
        note = (
            f"Trials are scored on {len(scored)} of the {len(train)} training rows, cut from them (search_share"
            f" {self.share:g}, stratified, seed {self.seed}), and trained on {len(remaining)}. Dev is not looked"
            f" at.{kept}"
        )
        return replace(data, splits={"train": train.take(remaining), "validation": scored}, notes=(*data.notes, note))


@dataclass(frozen=True)
class SearchTrainer:
    """Trains the runs of a search in a worker process."""

    folder: str  # the search's folder
    rows: Rows  # the rows that runs are trained and scored on
    sampler_config: SamplerConfig  # how trials are pruned
    criterion: SelectionCriterion  # how trials are ranked
    first_seed: int  # the seed whose runs may be pruned

    def __call__(self, run: Run, config: Config) -> RunResult:
        """Train a run."""
        from attentune.training.train import train

        callbacks = [PruningCallback(self, run.method, config)] if self._may_prune(run) else []
        return train(config, data=self.rows.load(config), callbacks=callbacks, with_baselines=False)

    def _may_prune(self, run: Run) -> bool:
        return self.sampler_config.pruner != "none" and run.seed == self.first_seed


class PruningCallback(TrainingCallback):
    """Raises `Pruned` after a validation score that is worse than those of other trials."""

    def __init__(self, trainer: SearchTrainer, trial: str, config: Config) -> None:
        self._trainer, self._trial, self._config = trainer, trial, config
        self._scores: dict[int, float] = {}

    def on_evaluate(self, state: TrainingState, scores: Scores, *, is_last: bool) -> None:
        metric = self._trainer.criterion.metric
        score = next(iter(scores.values()))[metric]
        count = _times_scored(state, self._config)
        if score is None:
            return
        self._scores[count] = score
        if is_last:
            return
        given = self._trainer
        # Opened each time, as other trials go on.
        study = SearchStudy(Path(given.folder), Space(), given.sampler_config, given.criterion, read_only=True)
        if study.is_worse(self._trial, self._scores):
            times = "once" if count == 1 else f"{count} times"
            raise Pruned(f"{metric} {score:.4f} when scored {times}, worse than others by then")


def _times_scored(state: TrainingState, config: Config) -> int:
    """Return the number of validation scores that a run has had, including those before it was resumed."""
    if config.training.eval_strategy == "steps":
        return -(-state.step // (config.training.eval_steps or 1))
    return state.epoch + (state.step_in_epoch > 0)
