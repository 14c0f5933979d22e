"""The methods by name, all behind one interface."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.attribution import attention as attending
from attentune.attribution import captum_methods
from attentune.attribution import captum_methods as masking
from attentune.attribution import gradient as one_pass
from attentune.attribution.base import Scored, Scorer, Settings
from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError


@dataclass(frozen=True)
class Method:
    """A method of explanation.

    Attributes:
        score: from a scorer, rows (B,), the classes wanted for them (B,) and settings to the rows' scores.
        signed: whether scores below 0 speak against the class. If not, 0 is the least.
        together: whether rows share batches. If not, rows are scored one by one, each with its own copies.
        needs_gate: only for models with a token gate.
        needs_captum: only with Captum installed.
    """

    score: Callable[[Scorer, np.ndarray, np.ndarray, Settings], Scored]
    signed: bool
    together: bool = True
    needs_gate: bool = False
    needs_captum: bool = False


METHODS: dict[str, Method] = {
    "ssa": Method(one_pass.ssa, signed=False, needs_gate=True),
    "gradient": Method(one_pass.gradient, signed=True),
    "integrated-gradients": Method(captum_methods.integrated_gradients, signed=True, together=False, needs_captum=True),
    "leave-one-out": Method(masking.leave_one_out, signed=True, together=False),
    "lime": Method(captum_methods.lime, signed=True, together=False, needs_captum=True),
    "shap": Method(captum_methods.shap, signed=True, together=False, needs_captum=True),
    "attention": Method(attending.attention, signed=False),
    "attention-gradient": Method(attending.attention_gradient, signed=False),
    "random": Method(one_pass.random, signed=False),
}


def method_for(name: str, model: Any) -> Method:
    """The method of this name, if it works on this model.

    Raises:
        ConfigError: it does not exist, or not work here; the message names those that do.
    """
    if name not in METHODS:
        raise ConfigError(f"method: got {name!r}, expected one of {', '.join(METHODS)}.{did_you_mean(name, METHODS)}")
    method = METHODS[name]
    if method.needs_gate and model.token_gate is None:
        others = ", ".join(other for other, own in METHODS.items() if not own.needs_gate)
        raise ConfigError(
            f"method: {name} needs a model that scores tokens, trained with a preset such as ssa-hybrid; this one does"
            f" not. Methods that work on it: {others}."
        )
    if method.needs_captum and importlib.util.find_spec("captum") is None:
        raise ConfigError(f"method: {name} needs Captum, which is not installed; run: pip install 'attentune[explain]'")
    return method
