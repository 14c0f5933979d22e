"""What the model returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.utils import ModelOutput


@dataclass
class AttentuneOutput(ModelOutput):
    """What the model returns.

    Attributes:
        loss: the mean loss, a scalar, where labels were given.
        logits: (B, C) scores before the softmax; (B, 1) for regression.
        token_scores: (B, T) importance of each token from 0 to 1, where the token gate gives one; 0 at padding.
        layer_weights: (B, L) the excitation of each layer, where the layer mix has squeeze-and-excitation; of two texts
            that are read apart the mean.
        token_logits: (B, T, 2) the token head's scores before the softmax, for its loss.
        hidden_states: the embeddings' and each layer's output, where asked for; of texts that are read apart
            (2 B, U, D), first all first ones, then the second ones.
        attentions: each layer's attention probabilities, where asked for; of texts that are read apart likewise.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    token_scores: Tensor | None = None
    token_logits: Tensor | None = None
    layer_weights: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
