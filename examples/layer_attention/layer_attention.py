"""A layer mix for Attentune: each text weights the encoder's layers by attention.

Install it with `pip install examples/layer_attention`; `--set model.layer_mix.kind=layer-attention` then uses it.

Source: the idea of Oh et al., "Don't Judge a Language Model by Its Last Layer", COLING 2022: layers are pooled by
attention instead of taking the last one. Here the last layer's [CLS] asks, the [CLS] of every layer answers, and the
weights apply to all tokens of the layers; the paper's contrastive training is not part of it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class LayerAttention(nn.Module):
    """Combine layers 1 to L into one token matrix, (B, T, D), by attention of the last layer's [CLS] to all layers'.

    Args:
        num_layers: L.
        hidden_size: D.
    """

    def __init__(self, *, num_layers: int, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        # At first nearly the last layer alone, so that training begins at the unchanged encoder.
        self.bias = nn.Parameter(torch.tensor([0.0] * (num_layers - 1) + [4.0]))

    def forward(self, layers: Sequence[Tensor], mask_BT: Tensor) -> Tensor:
        first_BLD = torch.stack([layer[:, 0] for layer in layers], dim=1).to(self.key.weight.dtype)
        query_BD = self.query(first_BLD[:, -1])
        scores_BL = torch.einsum("bd,bld->bl", query_BD, self.key(first_BLD)) / query_BD.shape[-1] ** 0.5
        weights_BL = (scores_BL + self.bias).softmax(dim=-1)
        mixed_BTD = layers[0] * weights_BL[:, 0, None, None]
        for place in range(1, len(layers)):
            mixed_BTD = mixed_BTD + layers[place] * weights_BL[:, place, None, None]
        return mixed_BTD
