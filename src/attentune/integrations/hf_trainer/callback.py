"""The callback that labels tokens before each epoch of transformers' Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attentune.config import Config, load_config
from attentune.errors import ConfigError
from attentune.integrations.hf_trainer.collator import Key, SSACollator, read_rows
from attentune.integrations.hf_trainer.scorer import TrainerScorer
from attentune.models.loading import Tokenizer
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import label_space_of
from attentune.token_labels.base import LabelGenerator, LabelSource
from attentune.token_labels.comparator import PredictionComparator
from attentune.token_labels.registry import build_generator

# Those that take every row once and need nothing from the training pass itself.
USABLE = ("flip", "drop", "leave-one-out", "integrated-gradients", "lime")


class SSACallback(TrainerCallback):
    """Self-Supervised Attention for transformers' Trainer.

    Before each epoch but the first it asks the model which tokens turn its predictions, and `collator` puts these
    labels into the batches; the model adds its token head's loss.

    >>> ssa = SSACallback(model, tokenizer, train_dataset)
    >>> trainer = Trainer(
    ...     model=model, args=args, train_dataset=train_dataset, data_collator=ssa.collator, callbacks=[ssa]
    ... )

    Attributes:
        collator: the Trainer's `data_collator`; it serves evaluation too.
        facts: what was found, a mapping for each epoch: counts of texts probed and of labels.

    Source: SSA (Kou et al. 2020, sections 3.2 and 3.3).
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
        """Read the rows.

        Args:
            model: with a token gate, as `new_model(..., preset="ssa-hybrid")` builds it.
            tokenizer: the model's.
            train_dataset: tokenised rows with `input_ids` and `label` or `labels`.
            preset: what its sections `labels` and `objective` say is done; the model is as it is.
            overrides: settings of these sections by dotted name, such as {"labels.ratio": 2.0, "objective.alpha": 0.9}.

        Raises:
            ConfigError: a setting that cannot be used, or a model without a token gate.
            DataError: rows that cannot be used.
        """
        config = load_config(overrides=overrides, preset=preset)
        _check(model, config)
        self._model, self._settings = model, config.labels
        self._tokenizer, self._space = tokenizer, label_space_of(model.config)
        model.token_loss_share = 1.0 - config.objective.alpha
        self._features, self._gold, self._keys = read_rows(
            train_dataset,
            special_ids=model.config.special_token_ids,
            is_regression=self._space.task_type == "regression",
        )
        self._targets: dict[Key, np.ndarray] = {}
        self._generator: LabelGenerator | None = None
        self.collator = SSACollator(model, tokenizer, self._targets)
        self.facts: list[dict[str, Any]] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the label generator; its choices are functions of the Trainer's seed, the epoch and the row."""
        is_regression = self._space.task_type == "regression"
        comparator = PredictionComparator(
            self._space,
            tolerance=self._settings.tolerance,
            score_range=float(np.ptp(self._gold)) if is_regression else 1.0,
        )
        ids = {"pad_token_id": self._tokenizer.pad_token_id, "mask_token_id": self._tokenizer.mask_token_id}
        source = LabelSource(
            features=self._features,
            gold=self._gold,
            comparator=comparator,
            scorer=TrainerScorer(self._model, self._features, **ids),
            mask_token_id=ids["mask_token_id"],
            seed=args.seed,
        )
        self._generator = build_generator(self._settings, source)
        self._targets.clear()
        self.facts.clear()

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Label the tokens of this epoch with the model as it stands."""
        if self._generator is None:
            return
        # The Trainer counts epochs as a float; within one that is resumed, it is above a whole number.
        plan = self._generator.plan(int((state.epoch or 0.0) + 1e-3))
        self._targets.clear()
        if plan.token_labels is not None:
            self._targets.update({key: plan.token_labels.sample(row) for row, key in enumerate(self._keys)})
        self.facts.append(dict(plan.facts))


def _check(model: AttentuneForSequenceClassification, config: Config) -> None:
    problems = []
    if config.labels.generator not in USABLE:
        problems.append(
            f"labels.generator: got {config.labels.generator}, expected one that transformers' Trainer leaves room for:"
            f" {', '.join(USABLE)}. For the others use attentune.train."
        )
    if getattr(model, "token_gate", None) is None:
        problems.append(
            "model: has no token gate that could learn which tokens matter; build it with a preset that has one:"
            " new_model(encoder, labels, preset='ssa-hybrid')"
        )
    elif model.config.is_bi_encoder:
        problems.append("model: reads the texts of a pair apart, which transformers' Trainer has no rows for.")
    if problems:
        raise ConfigError(problems)
