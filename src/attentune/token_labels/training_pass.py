"""What an epoch's own forward passes said of the training rows."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from attentune.config import LabelsConfig
from attentune.token_labels.base import LabelGenerator, LabelSource


class TrainingPredictions:
    """Counts how often the training pass has seen each row, and how often it was right on it.

    Every process keeps its share; what is asked for or stored is the sum over all.
    """

    def __init__(self, source: LabelSource) -> None:
        self._source = source
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._seen_N, self._correct_N = np.zeros((2, len(self._source.features)), dtype=np.int32)

    def update(self, rows: np.ndarray, logits_BC: Tensor) -> None:
        """These rows were predicted so."""
        logits = logits_BC.detach().float().cpu().numpy()
        # A batch may hold a row twice.
        np.add.at(self._seen_N, rows, 1)
        np.add.at(self._correct_N, rows, self._source.comparator.correct(logits, self._source.gold[rows]))

    def summed(self) -> tuple[np.ndarray, np.ndarray]:
        """(N,) each, over all processes: how often each row was seen, and found right."""
        scorer = self._source.scorer
        return scorer.summed(self._seen_N), scorer.summed(self._correct_N)

    def tensors(self) -> dict[str, np.ndarray]:
        """What a checkpoint must keep."""
        return dict(zip(("pass_seen", "pass_correct"), self.summed(), strict=True))

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        """Put back what `tensors` gave."""
        self.reset()
        if self._source.scorer.part.start == 0:  # one process keeps them; the sum over all is as it was
            self._seen_N, self._correct_N = tensors["pass_seen"].copy(), tensors["pass_correct"].copy()


class ReusesTrainingPredictions(LabelGenerator):
    """A generator that, where it is set to, takes the training pass's word for which sentences the model is right on.

    With dropout on and weights of up to an epoch ago that word is not always true: see what each generator makes of it.
    """

    def __init__(self, settings: LabelsConfig, source: LabelSource) -> None:
        super().__init__(settings, source)
        # With scores two right predictions may differ, so that the unmasked one must be known.
        trusts = settings.reuse_predictions and source.comparator.correct_implies_same
        self._pass = TrainingPredictions(source) if trusts else None

    def assumed_correct(self) -> np.ndarray:
        """(N,) bool: the rows taken to be right without asking: those that were right whenever they were seen."""
        if self._pass is None:
            return np.zeros(len(self.source.features), dtype=bool)
        seen_N, correct_N = self._pass.summed()
        return (seen_N > 0) & (correct_N == seen_N)

    def reset_predictions(self) -> None:
        """Begin anew, once an epoch has been planned."""
        if self._pass is not None:
            self._pass.reset()

    def on_backward(self, rows: np.ndarray, inputs: dict[str, Tensor], logits_BC: Tensor) -> None:
        if self._pass is not None:
            self._pass.update(rows, logits_BC)

    def tensors(self) -> dict[str, np.ndarray]:
        return {} if self._pass is None else self._pass.tensors()

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        if self._pass is not None:
            self._pass.restore(tensors)
