"""The layer mix slot: combines the outputs of all encoder layers into one token matrix.

Source: SESAME (Su and Cheng 2019), section 3.1 and table 3; initialisation as in its released program.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attentune.plugins import is_plugin, load_plugin

# Combinations without parameters: from the outputs of layers 1..L, each (B, T, D), to one (B, T, D).
SELECTIONS: dict[str, Callable[[Sequence[Tensor]], Tensor]] = {
    "first": lambda layers: layers[0],
    "second": lambda layers: layers[1],
    "second-to-last": lambda layers: layers[-2],
    "last": lambda layers: layers[-1],
    "sum-last-4": lambda layers: torch.stack(tuple(layers[-4:])).sum(dim=0),
    "sum-all": lambda layers: torch.stack(tuple(layers)).sum(dim=0),
    "mean-all": lambda layers: torch.stack(tuple(layers)).mean(dim=0),
}
LAYER_MIXES: tuple[str, ...] = (*SELECTIONS, "weighted", "concat-last-4")

# The fewest layers that an encoder must have for each kind.
MINIMUM_LAYERS: dict[str, int] = {"second": 2, "second-to-last": 2, "sum-last-4": 4, "concat-last-4": 4}


def minimum_layers(kind: str) -> int:
    """Return the fewest layers for a kind; those of other packages say it by the attribute `minimum_layers`."""
    if is_plugin(kind):
        return int(getattr(load_plugin("attentune.layer_mixes", kind), "minimum_layers", 1))
    return MINIMUM_LAYERS.get(kind, 1)


def layer_means(layers: Sequence[Tensor], mask_BT: Tensor) -> Tensor:
    """Average each layer's output over real tokens and features, (B, L) float32 (the "squeeze")."""
    weights_BT = mask_BT.float() / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    # Padding may hold NaN, so multiplying by a weight of zero is not enough.
    means = [layer.float().mean(dim=-1).masked_fill(~mask_BT, 0.0) for layer in layers]
    return torch.stack([(mean_BT * weights_BT).sum(dim=1) for mean_BT in means], dim=1)


# The bias of the released program, in both linear layers.
_BIAS = 0.8


class ExcitationLinear(nn.Linear):
    """A linear layer initialised as in the released program: variance-scaled (He) weights and biases of 0.8.

    The weights are drawn from a normal distribution that is truncated at two standard deviations, with a standard
    deviation of sqrt(1.3 x 2 / inputs) before the truncation, which makes the variance 2 / inputs again.
    """

    def reset_parameters(self) -> None:
        deviation = math.sqrt(1.3 * 2 / self.in_features)
        nn.init.trunc_normal_(self.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        nn.init.constant_(self.bias, _BIAS)


class NeutralLinear(nn.Linear):
    """The second linear layer of an excitation that starts at 1/2 for all layers: exactly so for means of 0.

    Small weights, so that what a layer's weight becomes is due to training; the bias takes away what the first layer's
    bias adds.
    """

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)
        with torch.no_grad():
            self.bias.copy_(-_BIAS * self.weight.sum(dim=1))


class Excitation(nn.Module):
    """Squeeze-and-excitation: computes a weight between 0 and 1 for each layer from all layers' means.

    Source: SESAME, section 3.1; the neutral start is ours.
    """

    def __init__(self, *, num_layers: int, ratio: int, neutral: bool = True) -> None:
        super().__init__()
        inner = max(1, num_layers // ratio)
        self.squeeze = ExcitationLinear(num_layers, inner)
        self.excite = (NeutralLinear if neutral else ExcitationLinear)(inner, num_layers)

    def forward(self, layers: Sequence[Tensor], mask_BT: Tensor) -> Tensor:
        """Compute the weights, (B, L) float32."""
        means_BL = layer_means(layers, mask_BT).to(self.squeeze.weight.dtype)
        return torch.sigmoid(self.excite(torch.relu(self.squeeze(means_BL))).float())


class LayerMix(nn.Module):
    """Rescales the layers by squeeze-and-excitation if configured, then selects or combines them.

    "weighted" is the mean weighted by excitation with squeeze; without it, by learned weights (softmax), first equal.
    With `neutral` the factor is twice the excitation, which starts at 1.
    """

    def __init__(
        self,
        *,
        kind: str,
        num_layers: int,
        hidden_size: int,
        squeeze: bool,
        ratio: int = 3,
        neutral: bool = True,
    ) -> None:
        super().__init__()
        self.kind, self.hidden_size = kind, hidden_size
        self.excitation = Excitation(num_layers=num_layers, ratio=ratio, neutral=neutral) if squeeze else None
        self.factor_of_excitation = 2.0 if neutral else 1.0
        is_learned = kind == "weighted" and not squeeze
        self.layer_weights = nn.Parameter(torch.zeros(num_layers)) if is_learned else None
        self.linear = nn.Linear(4 * hidden_size, hidden_size) if kind == "concat-last-4" else None
        self.combination: nn.Module | None = None
        if is_plugin(kind):
            self.combination = load_plugin("attentune.layer_mixes", kind)(
                num_layers=num_layers, hidden_size=hidden_size
            )

    def forward(self, layers: Sequence[Tensor], mask_BT: Tensor) -> tuple[Tensor, Tensor | None]:
        """Combine the outputs of layers 1 to L; return the tokens (B, T, D) and the excitation (B, L), if any."""
        if self.excitation is None:
            shares_L = None if self.layer_weights is None else self.layer_weights.float().softmax(dim=0)
            return self._combine(layers if shares_L is None else _Scaled(layers, shares_L[None]), mask_BT, None), None
        weights_BL = self.excitation(layers, mask_BT)
        return self.rescaled(layers, mask_BT, weights_BL), weights_BL

    def rescaled(self, layers: Sequence[Tensor], mask_BT: Tensor, weights_BL: Tensor) -> Tensor:
        """Combine the layers, rescaled by a given excitation."""
        factors_BL = self.factor_of_excitation * weights_BL
        return self._combine(_Scaled(layers, factors_BL), mask_BT, factors_BL.sum(dim=1))

    def _combine(self, layers: Sequence[Tensor], mask_BT: Tensor, total_B: Tensor | None) -> Tensor:
        if self.combination is not None:
            return self.combination(layers, mask_BT)
        if self.linear is not None:
            return self.linear(torch.cat(tuple(layers[-4:]), dim=-1).to(self.linear.weight.dtype))
        if self.kind != "weighted":
            return SELECTIONS[self.kind](layers)
        mixed_BTD = SELECTIONS["sum-all"](layers)
        return mixed_BTD if total_B is None else mixed_BTD / total_B[:, None, None].to(mixed_BTD.dtype)


class _Scaled(Sequence[Tensor]):
    """Layers multiplied by their weights, computed on access."""

    def __init__(self, layers: Sequence[Tensor], weights_BL: Tensor) -> None:
        self._layers, self._weights_BL = layers, weights_BL

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(len(self))[place]]
        if place >= len(self):
            raise IndexError(place)
        layer = self._layers[place]
        return layer * self._weights_BL[:, place, None, None].to(layer.dtype)
