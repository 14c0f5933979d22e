"""SSA for the Trainer of transformers: the start and end of the classifier, and token labels for each epoch.

Start with `SSACallback`; `new_model` builds the model, `recommended_arguments` chooses the training arguments.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import GradientAccumulationPlugin
from transformers import DataCollatorWithPadding, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attentune.config import Config, TrainingConfig, load_config
from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import Features
from attentune.errors import ConfigError, DataError
from attentune.models.build import build_model, load_tokenizer
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import Tokenizer, label_space_of
from attentune.nn.losses import NO_LABEL
from attentune.token_labels.base import LabelSource, PredictionComparator, TrainingScorer
from attentune.token_labels.flip import Flip
from attentune.training.linear_probe import ProbeRows, fit_output_scale, is_probed, start_classifier
from attentune.training.objective import build_objective
from attentune.training.prepare import RunSize, choose_settings, default_loss, score_scale
from attentune.training.run_folder import RULED


def new_model(
    encoder: str,
    labels: Sequence[str] | None,
    *,
    preset: str = "bert",
    is_pair: bool = False,
    max_length: int = 128,
    seed: int = 42,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[AttentuneForSequenceClassification, Tokenizer]:
    """Build a model from a pre-trained encoder with a preset's newly initialised slots, and load its tokenizer.

    The loss is that of `attentune train`: for scores from a dot product minus Pearson's correlation, whose scale
    `ClassifierCallback` fits.

    Args:
        encoder: "embedded", a folder, or a name on the Hugging Face hub.
        labels: the classes in the order of their ids; None for regression.
        preset: the name of a method; `attentune list presets` lists them.
        is_pair: whether the rows are pairs of texts.
        max_length: the maximum number of tokens of a text or pair; the tokenizer truncates at it.
        seed: the seed for the initialisation of new weights.
        overrides: model settings by dotted name, such as {"model.token_gate.beta": 0.9}.

    Returns:
        The model and its tokenizer.

    Raises:
        ConfigError: a setting is invalid.
        UnsupportedEncoderError: the encoder cannot be loaded or does not support what the preset requires.
    """
    settings = {**(overrides or {}), "model.name_or_path": encoder, "data.max_length": max_length}
    config = load_config(overrides=settings, preset=preset)
    _check_left_to_trainer(config)
    tokenizer = load_tokenizer(config.model)
    tokenizer.model_max_length = config.data.max_length
    space = LabelSpace("regression") if labels is None else LabelSpace("classification", tuple(labels))
    model = build_model(
        config.model,
        space,
        tokenizer,
        max_length=config.data.max_length,
        is_pair=is_pair,
        seed=seed,
        loss=default_loss(config, space.task_type, is_pair=is_pair),
    )
    return model, tokenizer


# The rule's settings that have another name, or none, in TrainingArguments.
_SHARED = tuple(name for name in RULED if name not in ("eval_strategy", "eval_steps", "save_steps"))


def recommended_arguments(
    model: Any, train_dataset: Any, *, output_dir: str, eval_dataset: Any = None, **arguments: Any
) -> TrainingArguments:
    """Return training arguments that suit the number and length of the rows and the size of the encoder.

    Learning rate, epochs, batch size and how often the model is scored follow `attentune.training.prepare`; warm-up,
    weight decay and schedule are those of `attentune train`.
    """
    rows = len(train_dataset)
    if not rows or "input_ids" not in train_dataset[0]:
        got = "no rows" if not rows else f"rows with {', '.join(train_dataset[0])}"
        raise DataError(f"train_dataset: got {got}, expected tokenised rows with input_ids.")
    is_table = hasattr(train_dataset, "column_names")
    token_ids = train_dataset["input_ids"] if is_table else [row["input_ids"] for row in train_dataset]
    config = getattr(model.config, "encoder_config", model.config)
    size = RunSize(
        rows=rows,
        mean_tokens=sum(map(len, token_ids)) / rows,
        validation_rows=0 if eval_dataset is None else len(eval_dataset),
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
    )
    given = {
        name: arguments[name] for name in (*_SHARED, "max_steps", "gradient_accumulation_steps") if name in arguments
    }
    settled = choose_settings(TrainingConfig(**given, eval_strategy="no" if eval_dataset is None else None), size)
    # The Trainer saves the best weights only where it scores, so both happen at the same steps.
    when = "epoch" if settled.save_steps is None else "steps"
    made: dict[str, Any] = {
        **{name: getattr(settled, name) for name in _SHARED},
        "eval_strategy": "no" if eval_dataset is None else when,
        "save_strategy": when,
        "weight_decay": settled.weight_decay,
    }
    if "warmup_steps" not in arguments:
        made["warmup_steps"] = settled.warmup_ratio  # below 1 it is a share of all steps
    if settled.save_steps is not None:
        made |= {"save_steps": settled.save_steps, "eval_steps": settled.save_steps}
    return TrainingArguments(output_dir=output_dir, **made | arguments)


Key = tuple[bytes, float]


def tokens_of(row: Mapping[str, Any], column: str = "input_ids") -> np.ndarray:
    """Return a column of a tokenised row, (T,) int32, without padding."""
    values, mask = np.asarray(row[column], dtype=np.int32), row.get("attention_mask")
    return values if mask is None else values[np.asarray(mask).astype(bool)]


def label_of(row: Mapping[str, Any]) -> Any:
    """Return the label of a row; None if it has none."""
    return row.get("labels", row.get("label"))


def key_of(row: Mapping[str, Any]) -> Key:
    """Return the key of a row: its tokens and its label, since the Trainer may drop all other columns."""
    label = label_of(row)
    return tokens_of(row).tobytes(), float("nan") if label is None else float(label)


def read_rows(dataset: Any, *, special_ids: list[int], is_regression: bool) -> tuple[Features, np.ndarray, list[Key]]:
    """Read all rows of a tokenised data set."""
    if not hasattr(dataset, "__len__") or not len(dataset):
        raise DataError("train_dataset: expected a data set with a length and at least one row; a stream has none.")
    rows = [dataset[number] for number in range(len(dataset))]
    for number, row in enumerate(rows):
        if "input_ids" not in row or isinstance(label_of(row), (str, type(None))):
            raise DataError(
                f"train_dataset: row {number} has {', '.join(map(str, row))}, expected input_ids and a number as"
                " label; tokenise it first: dataset.map(lambda row: tokenizer(row['text'], truncation=True)), and"
                " number classes that are words: dataset.class_encode_column('label')"
            )
    ids = [tokens_of(row) for row in rows]
    lengths = np.array([len(row_ids) for row_ids in ids], dtype=np.int64)
    flat, types = np.concatenate(ids), None
    if all(row.get("token_type_ids") is not None for row in rows):
        types = np.concatenate([tokens_of(row, "token_type_ids") for row in rows]).astype(np.int8)
    features = Features(
        ids=flat,
        type_ids=types,
        special=np.isin(flat, special_ids),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        full_lengths=lengths,
    )
    gold = np.array([float(label_of(row)) for row in rows])
    return features, gold if is_regression else gold.astype(np.int64), [key_of(row) for row in rows]


class SSACollator:
    """Data collator that pads rows and, in training mode, adds token labels.

    The labels are `token_targets` (B, T): from 0 to 1, and negative for tokens without a label.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, targets: Mapping[Key, np.ndarray]) -> None:
        self._model, self._pad, self._targets = model, DataCollatorWithPadding(tokenizer), targets

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        batch = self._pad([dict(row) for row in rows])
        if self._model.training:
            # Added even if no row has labels: in distributed training every process needs the token head in the graph.
            targets_BT = torch.full(batch["input_ids"].shape, NO_LABEL)
            for number, row in enumerate(rows):
                row_targets = self._targets.get(key_of(row))
                if row_targets is not None:
                    targets_BT[number, batch["attention_mask"][number].bool()] = torch.from_numpy(row_targets)
            batch["token_targets"] = targets_BT
        return batch


class ClassifierCallback(TrainerCallback):
    """Starts and ends the classifier as `attentune train` does.

    Before the first step, scores are standardised, and a cosine or dot product with a scale is fitted to the training
    rows. After the last step, the scale of predictions is fitted if the loss (Pearson's correlation) leaves it open.

    >>> trainer = Trainer(..., callbacks=[ClassifierCallback(model, tokenizer, train_dataset)])
    """

    def __init__(
        self,
        model: AttentuneForSequenceClassification,
        tokenizer: Tokenizer,
        train_dataset: Any,
        *,
        linear_probe: bool = False,
    ) -> None:
        """Read the training rows."""
        self._model, self._is_probed = model, is_probed(model, linear_probe=linear_probe)
        self._pad_token_id, self._space = tokenizer.pad_token_id, label_space_of(model.config)
        self._is_regression = self._space.task_type == "regression"
        self._features, self._gold, keys = read_rows(
            train_dataset, special_ids=model.config.special_token_ids, is_regression=self._is_regression
        )
        tokens = {ids: number for number, ids in enumerate(dict.fromkeys(ids for ids, _ in keys))}
        self._groups = np.array([tokens[ids] for ids, _ in keys])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the scale of the scores, and fit the classifier unless training is resumed."""
        config, labels = self._model.config, self._gold
        if self._is_regression:
            if (config.score_mean, config.score_std) == (0.0, 1.0):
                config.score_mean, config.score_std = score_scale(labels)
            labels = ((labels - config.score_mean) / config.score_std).astype(np.float32)
        if self._is_probed and state.global_step == 0:
            start_classifier(
                self._model,
                ProbeRows(self._features, labels, self._space, self._groups.__getitem__),
                build_objective(self._space, labels, loss=config.loss),
                pad_token_id=self._pad_token_id,
                accelerator=_accelerator(),
                seed=args.seed,
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Fit the scale of the predictions if the loss leaves it open."""
        fit_output_scale(
            self._model, self._features, self._gold, pad_token_id=self._pad_token_id, accelerator=_accelerator()
        )


def _accelerator() -> Accelerator:
    """Return an Accelerator of the Trainer's processes and device that leaves its gradient accumulation as it is."""
    return Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(**GradientState().plugin_kwargs))


class SSACallback(TrainerCallback):
    """Self-Supervised Attention (SSA) for the Trainer of transformers.

    Before each epoch except the first, the callback labels the tokens that change the model's predictions. `collator`
    adds these labels to the batches, and the model adds the loss of its token head.

    >>> ssa = SSACallback(model, tokenizer, train_dataset)
    >>> trainer = Trainer(
    ...     model=model, args=args, train_dataset=train_dataset, data_collator=ssa.collator, callbacks=[ssa]
    ... )

    Attributes:
        collator: the `data_collator` for the Trainer, for both training and evaluation.
        facts: a mapping for each epoch: the numbers of scored texts and of labels.

    Source: SSA (Kou et al. 2020, sections 3.1 and 3.2).
    """

    def __init__(
        self,
        model: AttentuneForSequenceClassification,
        tokenizer: Tokenizer,
        train_dataset: Any,
        *,
        preset: str = "ssa-hybrid",
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        """Read the training rows and set the weight of the token loss in the model.

        Args:
            model: a model with a token gate, such as one from `new_model(..., preset="ssa-hybrid")`.
            tokenizer: the tokenizer of the model.
            train_dataset: tokenised rows with `input_ids` and `label` or `labels`.
            preset: the preset whose sections `labels` and `objective` apply; its `model` section does not.
            overrides: settings of these sections by dotted name, such as {"labels.ratio": 2.0, "objective.alpha": 0.9}.

        Raises:
            ConfigError: a setting is invalid, the generator is not `flip`, or the model has no token gate.
            DataError: the rows lack tokens or labels.
        """
        config = load_config(overrides=overrides, preset=preset)
        _check_left_to_trainer(config)
        _check(model, config)
        self._model, self._settings = model, config.labels
        self._tokenizer, self._space = tokenizer, label_space_of(model.config)
        model.token_loss_share = 1.0 - config.objective.alpha
        self._features, self._gold, self._keys = read_rows(
            train_dataset,
            special_ids=model.config.special_token_ids,
            is_regression=self._space.task_type == "regression",
        )
        self.targets: dict[Key, np.ndarray] = {}
        self._generator: Flip | None = None
        self.collator = SSACollator(model, tokenizer, self.targets)
        self.facts: list[dict[str, Any]] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Build the label generator; its random choices depend only on the Trainer's seed, the epoch and the row."""
        comparator = PredictionComparator(self._space, tolerance=self._settings.tolerance)
        ids = {"pad_token_id": self._tokenizer.pad_token_id, "mask_token_id": self._tokenizer.mask_token_id}
        source = LabelSource(
            features=self._features,
            gold=self._gold,
            comparator=comparator,
            scorer=TrainingScorer(model=self._model, accelerator=_accelerator(), features=self._features, **ids),
            mask_token_id=ids["mask_token_id"],
            seed=args.seed,
        )
        self._generator = Flip(self._settings, source)
        self.targets.clear()
        self.facts.clear()

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Generate the token labels of this epoch with the current weights."""
        if self._generator is None:
            return
        # The Trainer's epoch is a float; after a resume within an epoch it is not a whole number.
        plan = self._generator.plan(int((state.epoch or 0.0) + 1e-3))
        self.targets.clear()
        if plan.token_labels is not None:
            self.targets.update({key: plan.token_labels.sample(row) for row, key in enumerate(self._keys)})
        self.facts.append(dict(plan.facts))


def _check_left_to_trainer(config: Config) -> None:
    """Refuse settings of what transformers' Trainer does itself: it reads the rows and adds up the loss."""
    if config.objective.debias != "none":
        raise ConfigError(
            f"objective.debias: got {config.objective.debias}, expected none, as transformers' Trainer computes the"
            " loss of a batch without a weak model. Use attentune.train."
        )
    if config.data.ignore_words:
        raise ConfigError(
            f"data.ignore_words: got {', '.join(config.data.ignore_words)}, expected none, as the rows of transformers'"
            " Trainer are tokenised before they come here. Leave the words out of your texts before you tokenise, or"
            " use attentune.train."
        )


def _check(model: AttentuneForSequenceClassification, config: Config) -> None:
    problems = []
    if config.labels.generator != "flip":
        problems.append(
            f"labels.generator: got {config.labels.generator}, expected flip, the one that works with transformers'"
            " Trainer. For the others use attentune.train."
        )
    if getattr(model, "token_gate", None) is None:
        problems.append(
            "model: has no token gate that could learn which tokens matter; build it with a preset that has one:"
            " new_model(encoder, labels, preset='ssa-hybrid')"
        )
    elif model.config.is_bi_encoder:
        problems.append("model: is a bi-encoder, which transformers' Trainer does not support.")
    if problems:
        raise ConfigError(problems)
