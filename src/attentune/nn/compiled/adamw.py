"""AdamW for a CPU, in one pass over weights, gradients and moments; gradients may be bf16."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from attentune.nn.compiled.kernels import AdamWNumbers, adamw


class CompiledAdamW(torch.optim.AdamW):
    """AdamW whose step is compiled C code, with the state and the results (to rounding) of PyTorch's fused AdamW.

    A gradient may be bf16 (`Tensor.grad_dtype`), which PyTorch's step refuses; it is read as it is. Like PyTorch's, the
    step divides gradients by the attribute `grad_scale`, if it is set.

    Source: Loshchilov and Hutter 2019, algorithm 2.
    """

    grad_scale: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Do one step; `closure`, if given, computes the loss and is called first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale = 1.0 if self.grad_scale is None else float(self.grad_scale)
        for group in self.param_groups:
            for step, parameters in self._by_step(group["params"]).items():
                self._update(group, parameters, step, scale)
        return loss

    def _by_step(self, parameters: Iterable[Tensor]) -> dict[int, list[Tensor]]:
        """Count a step for each parameter that has a gradient, and group these parameters by their number of steps."""
        having = [one for one in parameters if one.grad is not None]
        for one in having:
            state = self.state[one]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(one) for _ in range(2))
        if having:
            torch._foreach_add_([self.state[one]["step"] for one in having], 1)
        groups: dict[int, list[Tensor]] = defaultdict(list)
        for one in having:
            groups[int(self.state[one]["step"])].append(one)
        return groups

    def _update(self, group: dict[str, Any], parameters: list[Tensor], step: int, scale: float) -> None:
        beta_1, beta_2 = group["betas"]
        numbers = AdamWNumbers(
            rate=group["lr"],
            decay=1.0 - group["lr"] * group["weight_decay"],
            share_1=1.0 - beta_1,
            beta_2=beta_2,
            share_2=1.0 - beta_2,
            epsilon=group["eps"],
            correction_1=1.0 - beta_1**step,
            correction_2=(1.0 - beta_2**step) ** 0.5,
            scale=scale,
        )
        gradients = [one.grad.contiguous() for one in parameters if one.grad is not None]
        means, squares = ([self.state[one][name] for one in parameters] for name in ("exp_avg", "exp_avg_sq"))
        adamw(parameters, gradients, means, squares, numbers)
        torch.autograd.graph.increment_version(parameters)
