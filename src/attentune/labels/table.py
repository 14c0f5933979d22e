"""All label generators, by the name that they have in `labels.generator`."""

from __future__ import annotations

from collections.abc import Callable

from attentune.config import LabelsConfig
from attentune.labels.attributions import IntegratedGradients, Lime
from attentune.labels.flip import Drop, Flip
from attentune.labels.generator import LabelGenerator, LabelSource
from attentune.labels.gradient import Gradient
from attentune.labels.leave_one_out import LeaveOneOut
from attentune.labels.released import Released
from attentune.labels.rows import MaskedRows

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
