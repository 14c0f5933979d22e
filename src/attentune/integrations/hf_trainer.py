"""SSA for the Trainer of transformers: a model, and token labels for each epoch.

Start with `SSACallback`; `new_model` builds the model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import GradientAccumulationPlugin
from transformers import DataCollatorWithPadding, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attentune.config import Config, load_config
from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import Features
from attentune.errors import ConfigError, DataError
from attentune.models.build import build_model, load_tokenizer
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import Tokenizer, label_space_of
from attentune.nn.losses import NO_LABEL
from attentune.token_labels.base import LabelSource, PredictionComparator, TrainingScorer
from attentune.token_labels.flip import Flip


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

    Args:
        encoder: "embedded", a folder, or a name on the Hugging Face hub.
        labels: the classes in the order of their ids; None for regression.
        preset: the name of a method; `attentune list presets` lists them.
        is_pair: whether the rows are pairs of texts, which the tokenizer joins.
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
    if is_pair and config.model.pair_encoding == "bi-encoder":
        raise ConfigError(
            f"preset {preset}: is a bi-encoder, expected a model of joined texts, as transformers' Trainer has no place"
            " for two encoded texts in a row. Use attentune.train, or another preset."
        )
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
        loss=config.objective.loss,
    )
    return model, tokenizer


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
        # Of the Trainer's processes and device; leaves its gradient accumulation as it is.
        accelerator = Accelerator(
            gradient_accumulation_plugin=GradientAccumulationPlugin(**GradientState().plugin_kwargs)
        )
        source = LabelSource(
            features=self._features,
            gold=self._gold,
            comparator=comparator,
            scorer=TrainingScorer(model=self._model, accelerator=accelerator, features=self._features, **ids),
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
        assert self._generator is not None  # made by on_train_begin
        # The Trainer's epoch is a float; after a resume within an epoch it is not a whole number.
        plan = self._generator.plan(int((state.epoch or 0.0) + 1e-3))
        self.targets.clear()
        if plan.token_labels is not None:
            self.targets.update({key: plan.token_labels.sample(row) for row, key in enumerate(self._keys)})
        self.facts.append(dict(plan.facts))


def _check_left_to_trainer(config: Config) -> None:
    """Refuse settings of what transformers' Trainer does itself: it reads the rows and adds up the loss."""
    if config.objective.loss == "pearson":
        raise ConfigError(
            "objective.loss: got pearson, expected another, as transformers' Trainer does not fit the scale of the"
            " predictions that it leaves open. Use attentune.train."
        )
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
