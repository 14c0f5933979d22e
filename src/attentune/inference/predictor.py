"""Scoring and predicting with a saved run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config import Config, DataConfig, TrainingConfig, load_config, to_dict
from attentune.config.parse import did_you_mean, parse_section
from attentune.data.builtin import load_spec
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.load import load_data
from attentune.data.tokenization import Features, encode_rows
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.inference.evaluator import Evaluator
from attentune.inference.scoring import make_accelerator
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.models.attention import use_own_attention
from attentune.models.fused import use_fused_layers
from attentune.models.loading import Tokenizer
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.precision import INT8, TRUE_BF16, bf16_copy, int8_copy
from attentune.models.saving import label_space_of, load_model
from attentune.results import TASKS_FILE

Progress = Callable[[int], None]
Encode = Callable[..., Features]
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Predictor:
    """A trained model, ready to predict as it did when it was scored: same precision, same batches.

    Attributes:
        folder: the run folder or checkpoint.
        config: the run's configuration, for a checkpoint that of its run; the defaults where there is none.
        label_space: what the model predicts.
    """

    folder: Path
    config: Config
    label_space: LabelSpace
    model: AttentuneForSequenceClassification
    tokenizer: Tokenizer

    @classmethod
    def load(cls, folder: str | Path, task: str | None = None) -> Predictor:
        """Load a run folder.

        Args:
            folder: a run folder or checkpoint, or the folder of several tasks.
            task: in the folder of several tasks, which one.

        Raises:
            CheckpointError: it holds no saved model, or several.
        """
        path = _run_of_task(Path(folder), task)
        model, tokenizer = load_model(path)
        homes = (path, path.absolute().parent) if path.absolute().name.startswith("checkpoint-") else (path,)
        file = next((home / "config.yaml" for home in homes if (home / "config.yaml").is_file()), None)
        config = Config() if file is None else load_config(file, as_record=True)
        return cls(path, config, label_space_of(model.config), model, tokenizer)

    def evaluator(self, data: TaskData, *, encode: Encode = encode_rows, **training: Any) -> Evaluator:
        """What predicts and scores these rows.

        Args:
            data: the rows; pairs or single texts as the model was trained on.
            encode: makes features of rows, as `encode_rows` does.
            training: settings of the training section to change, such as `precision`; None keeps the run's own.

        Raises:
            ConfigError: a setting that cannot be used.
            DataError: pairs for a model of single texts, or the other way round.
        """
        settings = self._settings(training)
        self._check_pairs(data)
        accelerator, _ = make_accelerator(precision=settings.precision, use_cpu=settings.use_cpu)
        lengths = {"max_length": self.model.config.max_seq_length, "bi_encoder": self.model.config.is_bi_encoder}
        if accelerator.device.type == "cpu":
            # As in training, so that scores repeat to the last digit.
            use_own_attention(self.model)
            if settings.fused_layers:
                use_fused_layers(self.model)
        return Evaluator(
            # Not prepared by Accelerate, which would bind the model itself to this precision for good: who asks it sets
            # the precision around the question.
            model=self.model.to(accelerator.device),
            accelerator=accelerator,
            splits=data.splits,
            features={name: encode(rows, self.tokenizer, **lengths) for name, rows in data.splits.items()},
            label_space=self.label_space,
            metrics=data.metrics,
            pad_token_id=self.tokenizer.pad_token_id,
            batch_size=settings.per_device_eval_batch_size,
        )

    def predictor(self, data: TaskData, *, precision: str | None) -> Evaluator:
        """What predicts and scores these rows in the run's precision or another one.

        Two more are for prediction alone, by a copy of the model and in batches by tokens: "bf16-true", of which also
        weights and hidden states are bf16, and on a CPU "int8".

        Raises:
            ConfigError, DataError: as `evaluator`; or this PyTorch has no int8.
        """
        if precision == TRUE_BF16:
            made = self.evaluator(data, precision="bf16")
            return replace(made, model=bf16_copy(self.model), batch_size=None)
        if precision == INT8:
            made = self.evaluator(data, precision="fp32", use_cpu=True)
            return replace(made, model=int8_copy(self.model), batch_size=None)
        return self.evaluator(data, precision=precision)

    def _settings(self, changes: dict[str, Any]) -> TrainingConfig:
        problems: list[str] = []
        changed = {key: value for key, value in changes.items() if value is not None}
        settings = parse_section(TrainingConfig, to_dict(self.config.training) | changed, "training", problems)
        if problems:
            raise ConfigError(problems)
        return settings

    def _check_pairs(self, data: TaskData) -> None:
        if data.splits and data.is_pair != self.is_pair:
            kinds = ("single texts", "pairs of texts")
            raise DataError(
                f"{data.name}: got {kinds[data.is_pair]}, but {self.folder} was trained on {kinds[self.is_pair]}."
                " Give it rows of that kind (own files: --text_column and --text_pair_column name the texts)."
            )

    @property
    def is_pair(self) -> bool:
        """Whether the model was trained on pairs of texts."""
        return bool(self.model.config.is_pair)

    def with_columns(self, config: DataConfig) -> DataConfig:
        """These data settings, with the run's own column names where own files are read and none are named."""
        if config.task is not None or config.text_column is not None:
            return config
        names = ("text_column", "text_pair_column", "label_column", "id_column", "task_type", "label_separator")
        own = {name: getattr(self.config.data, name) for name in names}
        return replace(config, **{name: value for name, value in own.items() if getattr(config, name) is None})

    def data(self, data_config: DataConfig | None, splits: Sequence[str]) -> TaskData:
        """The rows to score, their labels mapped by name onto the model's; the run's own data if none are named.

        Settings that name no data, such as `max_eval_samples`, go on top of the run's own.

        Raises:
            ConfigError: no data are named and the folder does not say what it was trained on; or a split that no data
                have.
        """
        for split in splits:
            if split.split("_")[0] not in _SPLITS:
                raise ConfigError(
                    f"split: got {split!r}, expected train, validation or test.{did_you_mean(split, _SPLITS)}"
                )
        if data_config is not None and _names_data(data_config):
            config = self.with_columns(data_config)
        else:
            config = _on_top(self.config.data, data_config or DataConfig())
        if not _names_data(config):
            raise ConfigError(f"{self.folder}: does not say what it was trained on; name data, as with --task cola.")
        try:
            found = load_data(config, seed=self.config.training.seed, splits=splits, label_space=self.label_space)
        except DataError as error:
            if data_config is not None and _names_data(data_config):
                raise
            # The path is not one that the user has just typed, so say where it comes from.
            raise type(error)(f"{error} (These data are named in {self.folder / 'config.yaml'}.)") from error
        if not found.splits:
            raise DataError(f"{found.name}: has no split named {', '.join(splits)}.")
        return found


def _run_of_task(folder: Path, task: str | None) -> Path:
    """The run folder itself; of several tasks that of the one that is meant."""
    if not (folder / TASKS_FILE).is_file():
        return folder
    runs = sorted(entry.parent for entry in folder.glob("*/config.json"))
    name = None if task is None else load_spec(task).name
    found = [run for run in runs if run.name == name]
    if not found:
        got = "no task" if name is None else f"task {name}"
        raise CheckpointError(
            f"{folder}: holds a run for each of {', '.join(run.name for run in runs)}; got {got}. Name one of them with"
            f" --task, or its folder: {runs[0] if runs else folder}."
        )
    return found[0]


def _names_data(config: DataConfig) -> bool:
    sources = (config.task, config.dataset_name, config.train_file, config.validation_file, config.test_file)
    return any(source is not None for source in sources)


def _on_top(own: DataConfig, given: DataConfig) -> DataConfig:
    """The run's own settings, with those of the given ones that are not the defaults."""
    changed = {field.name: getattr(given, field.name) for field in fields(DataConfig)}
    return replace(own, **{name: value for name, value in changed.items() if value != getattr(DataConfig(), name)})


def evaluate(
    run: str | Path | Predictor,
    data: DataConfig | None = None,
    *,
    splits: Sequence[str] = ("validation",),
    precision: str | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[str, float]]:
    """Score a saved run.

    Args:
        run: a run folder.
        data: which rows; the run's own validation rows if not given.
        splits: "validation", "test", ...
        precision: another one than the run's: auto, fp32, bf16, fp16, bf16-true, or int8 on a CPU.
        progress: called with the number of rows done in each batch.

    Returns:
        Scores by split and metric.

    Raises:
        AttentuneError: anything that the user can mend; the message says how.
    """
    saved = run if isinstance(run, Predictor) else Predictor.load(run, None if data is None else data.task)
    found = saved.data(data, splits)
    scores = saved.predictor(found, precision=precision).score(tuple(found.splits), progress=progress)
    if not scores:
        raise DataError(f"{found.name}: {', '.join(splits)} has no labels to score against; use predict for such rows.")
    return scores


def predict_rows(
    run: str | Path | Predictor, rows: TextRows, *, precision: str | None = None, progress: Progress | None = None
) -> np.ndarray:
    """(N, C) logits of a saved run for these rows, in its precision or another one (see `Predictor.predictor`)."""
    saved = run if isinstance(run, Predictor) else Predictor.load(run)
    data = TaskData("input", saved.label_space, (), {"input": rows})
    return saved.predictor(data, precision=precision).predict("input", progress)


def predict(
    run: str | Path | Predictor, texts: Sequence[str], pairs: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Predict texts, or pairs of texts.

    Args:
        run: a run folder.
        texts: the (first) texts.
        pairs: the second texts, for a model of pairs.

    Returns:
        For each text {"prediction": label name or score, "probabilities": {label: probability}}; of a run that predicts
        several labels a text the prediction is a list of names; regression has no probabilities.

    Raises:
        DataError: the two lists differ in length, or there are pairs for a model of single texts (or none for one of
            pairs).
    """
    if isinstance(texts, str) or isinstance(pairs, str):
        raise DataError("got one text, expected a list of texts: put it in [brackets].")
    if pairs is not None and len(pairs) != len(texts):
        raise DataError(f"got {len(texts)} texts and {len(pairs)} second texts, expected as many of each.")
    saved = run if isinstance(run, Predictor) else Predictor.load(run)
    ids = tuple(str(number) for number in range(len(texts)))
    rows = TextRows(ids, tuple(texts), None if pairs is None else tuple(pairs), None, "texts")
    if not len(rows):
        return []
    logits_NC = predict_rows(saved, rows)
    space, names = saved.label_space, saved.label_space.names
    predictions = predictions_of(logits_NC, space)
    if space.task_type == "regression":
        return [{"prediction": float(value)} for value in predictions]
    return [
        {
            "prediction": space.names_of(label) if space.is_multilabel else names[int(label)],
            "probabilities": dict(zip(names, map(float, shares), strict=True)),
        }
        for label, shares in zip(predictions, probabilities_of(logits_NC, space), strict=True)
    ]
