"""From the vectors of two texts, each read by itself, to scores of the pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn

COMBINATIONS = ("dot", "concat")


def both(texts_ND: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second texts, (B, D) each: the two halves of the rows."""
    half = len(texts_ND) // 2
    return texts_ND[:half], texts_ND[half:]


class DotProduct(nn.Module):
    """Both texts through one linear D -> d, and their dot product z.

    z is the prediction of a score; with two classes the logits are (0, z), whose cross-entropy is the binary
    cross-entropy of z.

    Args:
        hidden_size: D.
        projection: d.
        outputs: 1 or 2.

    Source: task-specific attention (Jia 2024); its baseline is this on the mean of each text's tokens.
    """

    def __init__(self, *, hidden_size: int, projection: int, outputs: int) -> None:
        super().__init__()
        if outputs > 2:
            raise ValueError(f"a dot product is one number: it cannot give {outputs} scores")
        self.projection = nn.Linear(hidden_size, projection)
        self.outputs = outputs

    def forward(self, texts_ND: Tensor) -> Tensor:
        """(B, outputs) in float32, of 2 B texts: first all first ones, then the second ones."""
        first_Bd, second_Bd = both(self.projection(texts_ND).float())
        z_B1 = (first_Bd * second_Bd).sum(dim=1, keepdim=True)
        return z_B1 if self.outputs == 1 else torch.cat([torch.zeros_like(z_B1), z_B1], dim=1)


class Concatenation(nn.Module):
    """A linear on [u, v, |u - v|, u * v].

    Source: InferSent (Conneau et al. 2017, section 3.1), as bi-encoders have had it since.
    """

    def __init__(self, *, hidden_size: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4 * hidden_size, outputs)

    def forward(self, texts_ND: Tensor) -> Tensor:
        """(B, outputs), of 2 B texts: first all first ones, then the second ones."""
        first_BD, second_BD = both(texts_ND)
        parts = (first_BD, second_BD, (first_BD - second_BD).abs(), first_BD * second_BD)
        return self.linear(torch.cat(parts, dim=1))


def build_classifier(
    *, hidden_size: int, outputs: int, combine: str | None = None, projection: int | None = None
) -> nn.Module:
    """What turns vectors into scores: a linear for single texts (`combine` None), else a key of `COMBINATIONS`.

    Args:
        hidden_size: D.
        outputs: scores a row.
        combine: "dot" or "concat", for pairs of texts that are read apart.
        projection: d of "dot"; D if not given.
    """
    if combine is None:
        return nn.Linear(hidden_size, outputs)
    if combine == "dot":
        return DotProduct(hidden_size=hidden_size, projection=projection or hidden_size, outputs=outputs)
    if combine == "concat":
        return Concatenation(hidden_size=hidden_size, outputs=outputs)
    raise ValueError(f"combination {combine!r} is none of {', '.join(COMBINATIONS)}")


def projection_weights(module: nn.Module) -> int:
    """How many weights a dot product's projection has, without biases: what the poster's table 2 counts."""
    return sum(part.projection.weight.numel() for part in module.modules() if isinstance(part, DotProduct))
