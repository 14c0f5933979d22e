"""Plans the epochs of a run: the label generators by name, and the plan in force."""

from collections.abc import Callable

import numpy as np

from attentune.config import LabelsConfig
from attentune.plugins import part_of
from attentune.token_labels.base import LabelGenerator, LabelSource
from attentune.token_labels.corruption import Corruption
from attentune.token_labels.flip import Flip, MaskedRows
from attentune.token_labels.plan import EpochPlan

GENERATORS: dict[str, Callable[[LabelsConfig, LabelSource], LabelGenerator]] = {
    "none": LabelGenerator,
    "masked-rows": MaskedRows,
    "corruption": Corruption,
    "flip": Flip,
}


def build_generator(settings: LabelsConfig, source: LabelSource) -> LabelGenerator:
    return part_of(GENERATORS, "attentune.label_generators", settings.generator)(settings, source)


class EpochPlanner:
    """Plans epochs with a label generator, and holds the plan in force."""

    def __init__(self, generator: LabelGenerator) -> None:
        self.generator = generator
        self.plan: EpochPlan | None = None

    def begin_epoch(self, epoch: int, on_rows: Callable[[int], None]) -> EpochPlan:
        """Plan an epoch (from 0); `on_rows` is called with the number of rows that the model has predicted."""
        self.generator.source.scorer.on_rows = on_rows
        self.plan = self.generator.plan(epoch)
        return self.plan

    def resume_epoch(self, epoch: int) -> EpochPlan:
        """Return the plan of an interrupted epoch: the checkpoint's if it depends on the model, else made again."""
        return self.generator.plan(epoch) if self.plan is None else self.plan

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the arrays of the plan in force if it depends on the model, for a checkpoint."""
        return self.plan.tensors() if self.generator.needs_model and self.plan is not None else {}

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        self.plan = EpochPlan.from_tensors(tensors) if "rows" in tensors else None
        if self.plan is not None:
            self.plan.check(np.diff(self.generator.source.features.starts))
