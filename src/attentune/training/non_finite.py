"""Numbers that are none: what is said of a loss, a gradient or weights that became infinite or NaN."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from attentune.errors import NonFiniteLossError

_SHOWN_ROWS = 8


def bad_value(what: str, value: float, step: int, rows: Sequence[str]) -> NonFiniteLossError:
    """The error for a loss or gradient of this step, found before any weight has moved.

    Args:
        what: such as "the loss".
        value: infinite or NaN.
        step: counted from 1.
        rows: the names of the step's rows.
    """
    return NonFiniteLossError(
        f"{what} became {value} at step {step}; the rows of this step: {_shown(rows)}. No weight was changed by it. Try"
        " a lower --learning_rate, --precision fp32, or look at these rows."
    )


def bad_weights(count: int, step: int, rows: Sequence[str]) -> NonFiniteLossError:
    """The error for weights that this step has spoilt."""
    return NonFiniteLossError(
        f"{count:,} weights became infinite or NaN at step {step}; the rows of this step: {_shown(rows)}. They are not"
        " saved. Try a lower --learning_rate, or look at these rows."
    )


def odd_weights(model: nn.Module) -> int:
    """How many of a model's weights are no finite numbers."""
    return sum(int((~weight.detach().isfinite()).sum()) for weight in model.parameters())


def _shown(rows: Sequence[str]) -> str:
    return ", ".join(rows[:_SHOWN_ROWS]) + (f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else "")
