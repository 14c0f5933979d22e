"""The parts of several tasks that share one encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from attentune.models.vocabulary_subset import VocabularySubset
from attentune.training.components import TrainingComponents, assemble, freeze_encoder, new_model, used_ids
from attentune.training.inputs import RunInputs
from attentune.training.optimizer import build_optimizer, decay_factor
from attentune.training.state import TrainingState


class SharedModel(nn.Module):
    """One encoder, and the models of all tasks around it: each weight has one name."""

    def __init__(self, models: Mapping[str, Any]) -> None:
        super().__init__()
        first = next(iter(models.values()))
        self.encoder = first.encoder
        self.blur = first.blur
        self.tasks = nn.ModuleDict(models)


class SharedParts:
    """What computes, for each task and for all.

    Attributes:
        model: all tasks' models, with one encoder.
        parts: of each task, with model, loop and evaluator of its own; optimiser and embeddings are shared.
        states: where each task stands.
        embeddings: the shared encoder's.
    """

    def __init__(
        self, model: SharedModel, parts: dict[str, TrainingComponents], embeddings: VocabularySubset, optimizer: Any
    ) -> None:
        self.model, self.parts, self.embeddings = model, parts, embeddings
        self.states = {task: TrainingState() for task in parts}
        self._optimizer = optimizer

    @property
    def steps_done(self) -> int:
        """Optimiser steps of all tasks so far."""
        return sum(state.step for state in self.states.values())

    @property
    def bare_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser inside Accelerate's wrapper."""
        return getattr(self._optimizer, "optimizer", self._optimizer)

    @property
    def scaler(self) -> Any:
        """The gradient scaler of fp16; None otherwise."""
        return next(iter(self.parts.values())).inputs.accelerator.scaler

    def decay(self) -> float:
        """What weight decay alone has made of a word embedding by now, as a factor: that of all tasks' steps."""
        factor = 1.0
        for task, parts in self.parts.items():
            settings, total = parts.inputs.config.training, parts.loop.total_steps
            factor *= decay_factor(settings, self.states[task].step, total)
        return factor

    def set_steps(self, task: str, count: int) -> None:
        """Give a task so many optimiser steps, on which its learning rate's course goes by."""
        parts = self.parts[task]
        config = parts.inputs.config
        settings = replace(config.training, max_steps=count)
        parts.inputs = replace(parts.inputs, config=replace(config, training=settings))
        parts.loop.settings = settings


def build_shared_parts(inputs: Mapping[str, RunInputs]) -> SharedParts:
    """Build the tasks' parts around the encoder of the first.

    Args:
        inputs: of each task; all have the same accelerator, and agree on encoder, blur and training settings.

    Raises:
        UnsupportedEncoderError: the encoder cannot be loaded or cannot do what is asked.
        ConfigError: an objective does not fit its task.
    """
    models: dict[str, Any] = {}
    for task, own in inputs.items():
        models[task] = new_model(own, like=next(iter(models.values()), None))
    frozen = {task: freeze_encoder(own, models[task]) for task, own in inputs.items()}
    shared, first = SharedModel(models), next(iter(inputs.values()))
    embeddings = VocabularySubset(shared.encoder, np.concatenate([used_ids(own) for own in inputs.values()]))
    optimizer = first.accelerator.prepare_optimizer(build_optimizer(shared, first.config.training))
    parts = {
        task: assemble(own, models[task], embeddings, optimizer=optimizer, frozen=frozen[task])
        for task, own in inputs.items()
    }
    made = SharedParts(shared, parts, embeddings, optimizer)
    for own_parts in parts.values():
        own_parts.whole_decay = made.decay
    return made
