"""All label generators, by the name that they have in `labels.generator`."""

from __future__ import annotations

from collections.abc import Callable

from attentune.config import LabelsConfig
from attentune.token_labels.attribution import IntegratedGradients, Lime
from attentune.token_labels.base import LabelGenerator, LabelSource
from attentune.token_labels.flip import Drop, Flip
from attentune.token_labels.gradient import Gradient
from attentune.token_labels.leave_one_out import LeaveOneOut
from attentune.token_labels.masked_rows import MaskedRows
from attentune.token_labels.original_ssa import Released

GENERATORS: dict[str, Callable[[LabelsConfig, LabelSource], LabelGenerator]] = {
    "none": LabelGenerator,
    "masked-rows": MaskedRows,
    "flip": Flip,
    "released": Released,
    "drop": Drop,
    "leave-one-out": LeaveOneOut,
    "gradient": Gradient,
    "integrated-gradients": IntegratedGradients,
    "lime": Lime,
}


def build_generator(settings: LabelsConfig, source: LabelSource) -> LabelGenerator:
    """The configured generator.

    Raises:
        ConfigError: it needs a package that is not installed.
    """
    return GENERATORS[settings.generator](settings, source)
