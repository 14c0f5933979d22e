"""The attribution head: estimates the Shapley values of tokens from the encoder's hidden states, and its loss.

Source: FastSHAP (Jethani et al., ICLR 2022), with the model's own hidden states as inputs instead of a second network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from attentune.nn.compiled.checks import unavailable_reason
from attentune.nn.compiled.kernels import VECTOR, normalize


class FoldedHead(NamedTuple):
    """The weights of a fitted head in bf16, with the norms' scales and shifts in the dense layer."""

    epsilon: float  # added to the variance by the norms
    dense: Tensor
    dense_bias: Tensor
    output: Tensor
    output_bias: Tensor

    def __call__(self, read: Sequence[Tensor]) -> Tensor:
        """Compute the contributions, (B, T, O) float32, from the float32 hidden states (B, T, D)."""
        batch, length, size = read[0].shape
        normed_NF = normalize([hidden_BTD.reshape(-1, size) for hidden_BTD in read], self.epsilon)
        with torch.autocast("cpu", enabled=False):
            middle_NW = functional.gelu(functional.linear(normed_NF, self.dense, self.dense_bias))
            scores_NO = functional.linear(middle_NW, self.output, self.output_bias).float()
        return scores_NO.view(batch, length, -1)


class AttributionHead(nn.Module):
    """Estimates each token's contribution to several values of a model: norm of each layer, dense, GELU, linear.

    The embeddings know which token it is, a middle layer what it means there, the last layer what the model makes of
    the text; the last layer alone has lost much of what belongs to a single token.
    """

    nothing_MO: Tensor

    def __init__(self, *, hidden_size: int, layers: Sequence[int], width: int, outputs: int, longest: int) -> None:
        super().__init__()
        self.hidden_size, self.layers = hidden_size, tuple(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in self.layers)
        self.dense = nn.Linear(hidden_size * len(self.layers), width)
        self.output = nn.Linear(width, outputs)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("nothing_MO", torch.zeros(longest, outputs))
        self.explained_variance = 1.0  # of held-out texts' masked copies, by a fitted head
        self.dropout = 0.0  # in training, before both layers
        self._folded: FoldedHead | None = None

    def forward(self, read: Sequence[Tensor]) -> Tensor:
        """Compute the contributions, (B, T, O) float32, from the hidden states (B, T, D) of `layers`."""
        if self._folded is not None and _is_bf16_on_cpu(read):
            return self._folded(read)
        dtype = self.dense.weight.dtype
        normed = [norm(hidden_BTD.to(dtype)) for norm, hidden_BTD in zip(self.norms, read, strict=True)]
        normed_BTF = functional.dropout(torch.cat(normed, dim=-1), self.dropout, self.training)
        middle_BTW = functional.dropout(functional.gelu(self.dense(normed_BTF)), self.dropout, self.training)
        return self.output(middle_BTW).float()

    @torch.no_grad()
    def fold(self) -> AttributionHead:
        """Prepare a fitted head for predictions in bf16 on a CPU, where its norms are one pass over memory; return it.

        There it takes less than half of the time, of which most is traffic of memory. Elsewhere nothing changes.
        """
        dense_WF, bias_W = self.dense.weight.double(), self.dense.bias.double()
        parts = []
        for norm, own_WD in zip(self.norms, dense_WF.split(self.hidden_size, dim=1), strict=True):
            parts.append(own_WD * norm.weight)
            bias_W = bias_W + own_WD @ norm.bias.double()
        weights = (torch.cat(parts, dim=1), bias_W, self.output.weight, self.output.bias)
        epsilon = float(self.norms[0].eps)  # type: ignore[arg-type]
        self._folded = FoldedHead(epsilon, *(weight.detach().bfloat16().cpu() for weight in weights))
        return self


def _is_bf16_on_cpu(read: Sequence[Tensor]) -> bool:
    """Whether autocast to bf16 is on for these float32 hidden states on the CPU, and the compiled code works here."""
    return (
        torch.is_inference_mode_enabled()
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and all(hidden_BTD.device.type == "cpu" and hidden_BTD.dtype == torch.float32 for hidden_BTD in read)
        and read[0].shape[-1] % VECTOR == 0
        and unavailable_reason() is None
    )


def efficient_scores(scores_BTO: Tensor, ordinary_BT: Tensor, whole_BO: Tensor) -> Tensor:
    """Spread what the scores of a text lack to what they should add up to evenly over its ordinary tokens.

    Source:
        FastSHAP, equation 6 (additive efficient normalisation).
    """
    ordinary_BT1 = ordinary_BT.unsqueeze(-1).to(scores_BTO.dtype)
    count_B1 = ordinary_BT1.sum(dim=1).clamp(min=1.0)
    own_BTO = scores_BTO.masked_fill(~ordinary_BT.unsqueeze(-1), 0.0)
    return own_BTO + ((whole_BO - own_BTO.sum(dim=1)) / count_B1).unsqueeze(1) * ordinary_BT1


def additive_loss(
    scores_BTO: Tensor, ordinary_BT: Tensor, kept_BKT: Tensor, rise_BKO: Tensor, whole_BO: Tensor
) -> Tensor:
    """Compute how badly sums of scores predict the values of masked copies of the texts.

    Source:
        FastSHAP, equation 4.
    """
    predicted_BKO = kept_BKT.to(scores_BTO.dtype) @ efficient_scores(scores_BTO, ordinary_BT, whole_BO)
    count_B = ordinary_BT.sum(dim=1).clamp(min=1)
    return ((predicted_BKO - rise_BKO).square().mean(dim=(1, 2)) / count_B).mean()
