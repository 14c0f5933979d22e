"""`Predictor`: a saved run that evaluates and predicts; and the functions `evaluate` and `predict`.

`Predictor.load` returns the kind that a run folder holds: a model (`ModelPredictor`), a baseline or an ensemble.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attentune.config import Config, DataConfig, TrainingConfig, load_config
from attentune.config.parse import did_you_mean, parse_section
from attentune.data.columns import lacking_columns, read_extra_columns, with_columns
from attentune.data.dataset import LabelSpace, TaskData, TextRows, checked_texts
from attentune.data.ignored_words import data_without_words, without_words
from attentune.data.load import FRAME, frame_table, load_data
from attentune.data.tables import Table, columns_of, find_columns, quote
from attentune.data.tokenization import encode_rows
from attentune.data.unlabelled import RowChunks, known_columns, unlabelled_chunks
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.inference.predictions import label_values
from attentune.inference.scoring import Evaluator, ModelEvaluator, make_accelerator
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.metrics.rejection import IN_SCOPE_SCORE, REJECTED, Rejection
from attentune.models.cpu_layers import keep_bf16_weights, use_fused_layers, use_own_attention
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import Tokenizer, label_space_of, load_attribution_head, load_model
from attentune.nn.attribution_head import AttributionHead
from attentune.results import RESULT_FILE, RunResult

if TYPE_CHECKING:
    from attentune.inference.evaluation import SplitEvaluation

Progress = Callable[[int], None]
_SPLITS = ("train", "validation", "test")


# The file that marks a run folder of each kind, and the module whose `load_run` loads it. The others hold a model.
# Modules are named, not imported, since they import this one.
_KINDS = {"ensemble.json": "attentune.inference.ensemble", "baseline.json": "attentune.baselines.registry"}


@dataclass(frozen=True)
class Predictor(ABC):
    """A saved run.

    Attributes:
        folder: the run folder or checkpoint.
        config: the configuration of the run; the defaults if the folder has none.
        label_space: the labels that the run predicts.
    """

    folder: Path
    config: Config
    label_space: LabelSpace

    @staticmethod
    def load(folder: str | Path) -> Predictor:
        """Load a run folder of any kind: a model, a baseline or an ensemble.

        Args:
            folder: a run folder or checkpoint.

        Raises:
            CheckpointError: the folder holds no saved run.
        """
        path = Path(folder)
        for marker, module in _KINDS.items():
            if (path / marker).is_file():
                return importlib.import_module(module).load_run(path)
        if (path / "records").is_dir() and not (path / "config.json").is_file():
            raise CheckpointError(
                f"{path}: is the folder of a comparison or search, expected a run folder. A search's model is"
                f" {path / 'best'}; compare --keep_best keeps the best run of each preset under {path / 'runs'}."
            )
        model, tokenizer = load_model(path)
        return ModelPredictor(path, saved_config(path), label_space_of(model.config), model, tokenizer)

    @property
    @abstractmethod
    def kind(self) -> str:
        """What the run is, in words: the model type of its encoder, or "ensemble of 3"."""

    @property
    @abstractmethod
    def is_pair(self) -> bool:
        """Whether the run was trained on pairs of texts."""

    @property
    def job(self) -> str:
        """What the run does, in words, such as "sorts a text into bad or good"; see `LabelSpace.job`."""
        bounds = None
        if self.label_space.task_type == "regression":
            with contextlib.suppress(CheckpointError):
                bounds = RunResult.load(self.folder / RESULT_FILE).train.get("score_range")
        is_range = isinstance(bounds, list) and [type(one) for one in bounds] == [float, float]
        return self.label_space.job(is_pair=self.is_pair, score_range=bounds if is_range else None)

    @abstractmethod
    def evaluator(self, data: TaskData, *, precision: str | None = None) -> Evaluator:
        """Make an evaluator of rows; in fp32, the default, a text has the same answer alone and in any batch."""

    def single_model(self, purpose: str) -> ModelPredictor:
        """Return this run if it is one model; others have no encoder to look into, convert or change."""
        if isinstance(self, ModelPredictor):
            return self
        raise ConfigError(
            f"{purpose}: got {self.folder} ({self.kind}), expected the run folder of one fine-tuned encoder."
            f" {self.instead}"
        )

    @property
    def instead(self) -> str:
        """What to do where `single_model` refuses."""
        return "Train one: attentune train --preset bert --output_dir DIR"

    @functools.cached_property
    def read(self) -> TextsRead:
        return TextsRead()

    @functools.cached_property
    def rejection(self) -> Rejection | None:
        """Which texts the run rejects, as of no class; None if it rejects none."""
        return Rejection.load(self.folder)

    def with_columns(self, config: DataConfig) -> DataConfig:
        """Return settings of custom data with the columns that the run was trained on, where none are given."""
        if config.task is not None:
            return config
        columns = ("text_column", "text_pair_column", "label_column", "id_column", "extra_columns")
        names = (*columns, "task_type", "label_separator", "ignore_labels")
        return with_columns(config, {name: getattr(self.config.data, name) for name in names})

    def chunks(self, source: str | Table, config: DataConfig, **options: Any) -> RowChunks:
        """Return the rows of a file or table, as `unlabelled_chunks` reads them, with the columns of the run."""
        config = self.with_columns(config)
        return unlabelled_chunks(source, label_space=self.label_space, is_pair=self.is_pair, config=config, **options)

    def data(self, data_config: DataConfig | None, splits: Sequence[str]) -> TaskData:
        """Load rows to score, with labels mapped by name to those of the model; by default the data of the run.

        Settings that select no data, such as `max_eval_samples`, are combined with those of the run.

        Raises:
            ConfigError: no data is given and the folder has no configuration; or the split is invalid.
        """
        for split in splits:
            if split.split("_")[0] not in _SPLITS:
                raise ConfigError(
                    f"split: got {split!r}, expected train, validation or test.{did_you_mean(split, _SPLITS)}"
                )
        if data_config is not None and _names_data(data_config):
            config = self.with_columns(data_config)
        else:
            config = _merged(self.config.data, data_config or DataConfig())
        if not _names_data(config):
            raise ConfigError(f"{self.folder}: does not say what it was trained on; name data, as with --task cola.")
        if config.validation_share == 0 and config.train_file and not config.validation_file and "validation" in splits:
            raise DataError(
                f"{self.folder}: was trained on all rows of {config.train_file}, so none are left to score. Name rows"
                " that it was not trained on: --validation_file FILE, or --test_file FILE with --split test."
            )
        try:
            loaded = load_data(config, seed=self.config.training.seed, splits=splits, label_space=self.label_space)
        except DataError as error:
            if data_config is not None and _names_data(data_config):
                raise
            # The user has not typed this path, so the message says where it comes from.
            raise type(error)(f"{error} (These data are named in {self.folder / 'config.yaml'}.)") from error
        if not loaded.splits:
            raise DataError(f"{loaded.name}: has no split named {', '.join(splits)}.")
        return loaded

    def shortened(self, rows: TextRows) -> TextRows:
        """Return the rows as the run reads them: without the words of `data.ignore_words`."""
        return without_words(rows, self.config.data.ignore_words)

    def check_reads_all(self, purpose: str) -> None:
        """Check that the run leaves no words out, for copies of the model that would read them."""
        if words := self.config.data.ignore_words:
            shown = ", ".join(map(quote, words[:3])) + (", ..." if len(words) > 3 else "")
            raise ConfigError(
                f"{purpose}: {self.folder} leaves {shown} out of texts (data.ignore_words), which the written model"
                " would read; expected a run that reads all words. Use attentune predict, serve or"
                " attentune.predict, which leave them out, or train without --ignore_words."
            )

    def as_read(self, data: TaskData) -> TaskData:
        """Check that the data are pairs or single texts, as in training; leave out the words of `data.ignore_words`."""
        if data.splits and data.is_pair != self.is_pair:
            kinds = ("single texts", "pairs of texts")
            raise DataError(
                f"{data.name}: got {kinds[data.is_pair]}, but {self.folder} was trained on {kinds[self.is_pair]}."
                " Give it rows of that kind (own files: --text_column and --text_pair_column name the texts)."
            )
        return data_without_words(data, self.config.data.ignore_words)


@dataclass
class TextsRead:
    """How many rows a run has read, how many of them only in part, and how many tokens of these."""

    rows: int = 0
    cut: int = 0
    limit: int = 0
    infrequent: dict[str, str] = field(default_factory=dict)  # a category of hardly any training row, by column

    def add(self, cut_lengths: np.ndarray) -> None:
        """Count rows; see `Evaluator.cut_lengths`."""
        self.rows += len(cut_lengths)
        self.cut += int(np.count_nonzero(cut_lengths))
        self.limit = max(self.limit, int(cut_lengths.max(initial=0)))

    def notes(self) -> list[str]:
        """Return sentences on the rows that were longer than the run reads, and on categories that it hardly knows."""
        notes = [
            f"Column {name!r} has values that fewer than two training rows have, such as {quote(value)}; they count as"
            " one."
            for name, value in self.infrequent.items()
        ]
        if not self.cut:
            return notes
        return [
            f"{self.cut:,} of {self.rows:,} texts ({self.cut / self.rows:.1%}) have more than {self.limit} tokens; the"
            " rest was not read. A run that is trained with --long_texts windows or a larger --max_length reads it.",
            *notes,
        ]


@dataclass(frozen=True)
class ModelPredictor(Predictor):
    model: AttentuneForSequenceClassification
    tokenizer: Tokenizer

    @functools.cached_property
    def attribution_head(self) -> AttributionHead | None:
        """The head of `attentune explain --fit`, if the folder has one."""
        return load_attribution_head(self.folder, self.model)

    def evaluator(self, data: TaskData, *, precision: str | None = None) -> ModelEvaluator:
        data, config = self.as_read(data), self.model.config
        lengths = {"max_length": config.max_seq_length, "bi_encoder": config.is_bi_encoder}
        accelerator = self.accelerator(precision)
        features = {name: encode_rows(rows, self.tokenizer, **lengths) for name, rows in data.splits.items()}
        for part in features.values():
            self.read.add(part.cut_lengths(config.max_seq_length))
        return ModelEvaluator(
            model=self.model,
            accelerator=accelerator,
            splits=data.splits,
            features=features,
            label_space=self.label_space,
            metrics=data.metrics,
            pad_token_id=self.tokenizer.pad_token_id,
            batch_size=self.config.training.per_device_eval_batch_size,
            rejection=self.rejection,
        )

    def accelerator(self, precision: str | None) -> Any:
        """Prepare the model for a precision, and return the accelerator that runs it, which is kept."""
        accelerator, state = self._accelerators.get(precision, (None, None))
        # All accelerators of a process share one state, which those of other runs change.
        if accelerator is None or state != (accelerator.mixed_precision, accelerator.device):
            problems: list[str] = []
            wanted = parse_section(TrainingConfig, {"precision": precision or "fp32"}, "training", problems).precision
            if problems:
                raise ConfigError(problems)
            accelerator, resolved = make_accelerator(precision=wanted, use_cpu=self.config.training.use_cpu)
            self._accelerators[precision] = accelerator, (accelerator.mixed_precision, accelerator.device)
            if accelerator.device.type == "cpu" and self.config.training.fused_layers and resolved == "bf16":
                use_fused_layers(self.model)
                keep_bf16_weights(self.model)
        # Not prepared by Accelerate, which would patch the model for this precision permanently; `score_rows` uses
        # autocast instead.
        if self.model.device.type != accelerator.device.type:
            self.model.to(accelerator.device)
        if accelerator.device.type == "cpu":
            use_own_attention(self.model)  # the same kernels as in training, for identical scores
        return accelerator

    @functools.cached_property
    def _accelerators(self) -> dict[str | None, tuple[Any, Any]]:
        """The accelerator of each precision, with what it had of the state that all of a process share."""
        return {}

    @property
    def kind(self) -> str:
        return str(self.model.encoder.config.model_type)

    @property
    def is_pair(self) -> bool:
        return bool(self.model.config.is_pair)


def saved_config(folder: Path) -> Config:
    """Read the configuration of a run folder; that of a checkpoint lies above it. The defaults if there is none."""
    homes = (folder, folder.absolute().parent) if folder.absolute().name.startswith("checkpoint-") else (folder,)
    file = next((home / "config.yaml" for home in homes if (home / "config.yaml").is_file()), None)
    return Config() if file is None else load_config(file, as_record=True)


def _names_data(config: DataConfig) -> bool:
    sources = (config.task, config.dataset_name, config.train_file, config.validation_file, config.test_file)
    return any(source is not None for source in sources)


def _merged(saved: DataConfig, given: DataConfig) -> DataConfig:
    """Return the settings of the run, overridden by the given ones that differ from the defaults."""
    names = [field.name for field in fields(DataConfig)]
    defaults = DataConfig()
    return replace(saved, **{n: getattr(given, n) for n in names if getattr(given, n) != getattr(defaults, n)})


def evaluate(
    run: str | Path | Predictor,
    data: DataConfig | None = None,
    *,
    splits: Sequence[str] = ("validation",),
    precision: str | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[str, float]]:
    """Evaluate a saved run.

    Args:
        run: a run folder or a loaded run.
        data: the data settings; default: the data of the run.
        splits: the splits to score: "validation", "test", ...
        precision: fp32 (default); auto, bf16 or fp16, which round.
        progress: called with the number of rows of each finished batch.

    Returns:
        Scores by split and metric.

    Raises:
        AttentuneError: for any user error; the message says how to fix it.
    """
    return _scored(run, data, splits, precision, progress)[-1]


def _scored(
    run: str | Path | Predictor,
    data: DataConfig | None,
    splits: Sequence[str],
    precision: str | None,
    progress: Progress | None,
) -> tuple[TaskData, Evaluator, dict[str, dict[str, float]]]:
    saved = run if isinstance(run, Predictor) else Predictor.load(run)
    rows = saved.data(data, splits)
    evaluator = saved.evaluator(rows, precision=precision)
    scores = evaluator.score(tuple(rows.splits), progress=progress)
    if not scores:
        raise DataError(f"{rows.name}: {', '.join(splits)} has no labels to score against; use predict for such rows.")
    return rows, evaluator, scores


def evaluate_in_detail(
    run: str | Path | Predictor,
    data: DataConfig | None = None,
    *,
    splits: Sequence[str] = ("validation",),
    precision: str | None = None,
    progress: Progress | None = None,
    out_of_scope: TextRows | None = None,
) -> tuple[dict[str, SplitEvaluation], TaskData]:
    """Evaluate with intervals, by class, with the wrong rows, and against texts of no class; as `evaluate`."""
    from attentune.inference.evaluation import evaluate_out_of_scope, evaluate_split  # imports scikit-learn

    saved = run if isinstance(run, Predictor) else Predictor.load(run)
    rows, evaluator, scores = _scored(saved, data, splits, precision, progress)
    space, metrics = evaluator.label_space, evaluator.metrics
    found = {
        split: evaluate_split(split, rows.splits[split], evaluator.logits[split], space, metrics) for split in scores
    }
    if out_of_scope is not None:
        outside = saved.evaluator(TaskData("out of scope", space, (), {"input": out_of_scope}), precision=precision)
        outside.predict("input", progress)
        found = {
            split: replace(one, out_of_scope=evaluate_out_of_scope(evaluator, split, outside))
            for split, one in found.items()
        }
    return found, rows


def predict_rows(
    run: str | Path | Predictor, rows: TextRows, *, precision: str | None = None, progress: Progress | None = None
) -> np.ndarray:
    """Compute the (N, C) logits of a saved run; for the precisions see `predict`."""
    saved = run if isinstance(run, Predictor) else Predictor.load(run)
    data = TaskData("input", saved.label_space, (), {"input": rows})
    return saved.evaluator(data, precision=precision).predict("input", progress)


def predict(
    run: str | Path | Predictor,
    texts: Any,
    pairs: Sequence[str] | None = None,
    *,
    precision: str | None = None,
) -> Any:
    """Predict texts, or pairs of texts.

    Args:
        run: a run folder or a loaded run.
        texts: the (first) texts; or a data frame, whose columns are read that the run was trained on.
        pairs: the second texts, for a model of pairs.
        precision: fp32 (default); auto, bf16 or fp16, which round.

    Returns:
        For each text {"prediction": label name or score, "probabilities": {label: probability}}, and "truncated": True
        if the text is longer than the model reads. The prediction of a multi-label run is a list of names; regression
        has no probabilities. A run that rejects texts of no class (`--reject`) adds "rejected", True or False, and
        "in_scope_score". For a data frame of pandas a data frame with its index, and the columns prediction, p_LABEL
        and those of rejection.

    Raises:
        InputError: a text is none, such as None or NaN.
        DataError: the two lists differ in length, or pairs are given to a model of single texts (or the reverse).
        ConfigError: there is no such precision, or the device does not have it.
    """
    saved, rows = run_and_rows(run, texts, pairs)
    answers: list[dict[str, Any]] = []
    if len(rows):
        data = TaskData("input", saved.label_space, (), {"input": rows})
        answers = predictions_of_input(saved.evaluator(data, precision=precision))
    return _as_frame(answers, saved, texts.index) if hasattr(texts, "iloc") else answers


def _as_frame(answers: list[dict[str, Any]], saved: Predictor, index: Any) -> Any:
    import pandas

    columns = {"prediction": [one["prediction"] for one in answers]}
    columns |= {f"p_{name}": [one["probabilities"][name] for one in answers] for name in saved.label_space.names}
    names = () if saved.rejection is None else (REJECTED, IN_SCOPE_SCORE)
    columns |= {name: [one[name] for one in answers] for name in names}
    return pandas.DataFrame(columns, index=index)


def run_and_rows(run: str | Path | Predictor, texts: Any, pairs: Sequence[str] | None) -> tuple[Predictor, TextRows]:
    """Load a run, and read texts or the columns of a data frame for it; lists are checked before it is loaded."""
    if isinstance(texts, str) or isinstance(pairs, str):
        raise DataError("got one text, expected a list of texts: put it in [brackets].")
    extra = dict[str, Any]()
    if hasattr(texts, "columns"):
        run = saved = run if isinstance(run, Predictor) else Predictor.load(run)
        names = tuple(map(str, texts.columns))
        texts = texts.set_axis(names, axis=1) if hasattr(texts, "set_axis") else texts  # pandas, whose names may be 0
        config = saved.with_columns(DataConfig())
        text = config.text_column
        lacking = [] if text is None or find_columns(text, names) else lacking_columns(text, names)
        for name in (*lacking, config.text_pair_column if saved.is_pair else None):
            if name not in (None, *names):
                raise DataError(
                    f"the data frame has no column {name!r}, which {saved.folder} was trained on."
                    f"{did_you_mean(str(name), names)} Columns here: {', '.join(map(repr, names))}. Rename one to"
                    f" {name!r}, or give a list of texts."
                )
        columns, _ = known_columns(Table(FRAME, names, {}, 0), config, is_pair=saved.is_pair)
        pairs = pairs if columns.pair is None else list(texts[columns.pair])
        if columns.extra:
            extra, _ = read_extra_columns(frame_table(texts[[*columns.extra_names]]), columns.extra)
        several = columns_of(columns.text)
        texts = list(texts[columns.text]) if len(several) == 1 else frame_table(texts[[*several]]).texts(columns.text)
    if pairs is not None and len(pairs) != len(texts):
        raise DataError(f"got {len(texts)} texts and {len(pairs)} second texts, expected as many of each.")
    firsts, seconds = checked_texts(texts, "texts"), None if pairs is None else checked_texts(pairs, "pairs")
    rows = TextRows(tuple(map(str, range(len(firsts)))), firsts, seconds, None, "texts", extra=extra)
    return run if isinstance(run, Predictor) else Predictor.load(run), rows


def prediction_dicts(logits_NC: np.ndarray, space: LabelSpace) -> list[dict[str, Any]]:
    """Return the prediction of each row and, unless it is a score, the probabilities by class."""
    answers = [{"prediction": one} for one in label_values(predictions_of(logits_NC, space), space)]
    if space.names:
        for answer, shares in zip(answers, probabilities_of(logits_NC, space).tolist(), strict=True):
            answer["probabilities"] = dict(zip(space.names, shares, strict=True))
    return answers


def predictions_of_input(evaluator: Evaluator) -> list[dict[str, Any]]:
    """Predict the split "input" of an evaluator; return for each row what `predict` does."""
    answers = prediction_dicts(evaluator.predict("input"), evaluator.label_space)
    for name, values in evaluator.rejection_columns("input").items():
        for answer, value in zip(answers, values, strict=True):
            answer[name] = value
    for row in np.flatnonzero(evaluator.cut_lengths("input")).tolist():
        answers[row]["truncated"] = True
    return answers
