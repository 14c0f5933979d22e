"""The classifier: from sentence vectors to logits, with what some losses and bi-encoders need in between."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def raw_outputs(loss: str, num_labels: int) -> int:
    """Return the number of outputs of the last linear layer: one per logit, with the loss "corn" one fewer."""
    return num_labels - 1 if loss == "corn" else num_labels


def build_outputs(loss: str) -> nn.Module | None:
    """Build the module that turns raw outputs into logits for this loss; None if they are the logits."""
    return {"corn": ClassLogProbabilities, "pearson": ScaledOutput}.get(loss, lambda: None)()


def class_log_probabilities(conditional_BK: Tensor) -> Tensor:
    """Compute log-probabilities of ordered classes, (B, K + 1) float32, from conditional logits.

    log p(y = k) = sum over j < k of log sigmoid(z_j), and for all but the last class + log sigmoid(-z_k).

    Source: CORN (Shi, Cao and Raschka 2021, section 3).
    """
    z_BK = conditional_BK.float()
    zero_B1 = z_BK.new_zeros(len(z_BK), 1)
    reached_BC = torch.cat([zero_B1, F.logsigmoid(z_BK).cumsum(dim=1)], dim=1)
    return reached_BC + torch.cat([F.logsigmoid(-z_BK), zero_B1], dim=1)


class ClassLogProbabilities(nn.Module):
    """`class_log_probabilities` as a module."""

    def forward(self, raw_BK: Tensor) -> Tensor:
        return class_log_probabilities(raw_BK)


class ScaledOutput(nn.Module):
    """Returns scale x output + offset, two numbers that are saved with the model and not trained.

    Pearson's correlation as a loss does not determine scale and offset; `fit` sets them.
    """

    scale: Tensor
    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("offset", torch.zeros(1))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.offset)

    def forward(self, raw_B1: Tensor) -> Tensor:
        return self.scale * raw_B1.float() + self.offset

    @torch.no_grad()
    def fit(self, outputs_N: Tensor, scores_N: Tensor) -> bool:
        """Set scale and offset by least squares, so that outputs are on the scale of the scores.

        Nothing changes if the slope is not positive or not defined (constant outputs): a negative scale would reverse
        the order of the predictions.
        """
        x_N, y_N = outputs_N.double(), scores_N.double()
        spread_N = x_N - x_N.mean()
        square = float((spread_N**2).sum())
        slope = float((spread_N * (y_N - y_N.mean())).sum()) / square if square > 0 else 0.0
        if not 0 < slope < float("inf"):
            return False
        self.offset.copy_(slope * self.offset + (y_N.mean() - slope * x_N.mean()))
        self.scale.mul_(slope)
        return True


COMBINATIONS = ("dot", "cosine", "concat", "concat-cosine", "scaled-dot")
# Of these, the ones that give one number, and so a score or the logit of two classes.
SIMILARITIES = ("scaled-dot", "dot", "cosine")


def _products(texts_ND: Tensor) -> Tensor:
    """Compute the dot product of each pair of 2 B vectors, (B, 1) float32."""
    first_BD, second_BD = both(texts_ND.float())
    return (first_BD * second_BD).sum(dim=1, keepdim=True)


def both(texts_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Split 2 B vectors into those of the first and of the second texts, (B, D) each."""
    half = len(texts_ND) // 2
    return texts_ND[:half], texts_ND[half:]


class DotProduct(nn.Module):
    """Projects both texts by one linear layer D -> d and takes their dot product z.

    z is the predicted score; with two classes the logits are (0, z), whose cross-entropy is the binary cross-entropy of
    z.

    Source: task-specific attention (Jia 2024); its baseline applies this to the mean of each text's tokens.
    """

    def __init__(self, *, hidden_size: int, projection: int, outputs: int) -> None:
        super().__init__()
        if outputs > 2:
            raise ValueError(f"outputs: got {outputs}, expected 1 or 2 for a dot product, which is one number")
        self.projection = nn.Linear(hidden_size, projection)
        self.outputs = outputs

    def forward(self, texts_ND: Tensor) -> Tensor:
        """Score 2 B texts, all first texts before all second texts: (B, outputs) float32."""
        return _score_logits(_products(self.projection(texts_ND)), self.outputs)


def _score_logits(z_B1: Tensor, outputs: int) -> Tensor:
    """Return the score z itself, or for two classes the logits (0, z)."""
    return z_B1 if outputs == 1 else torch.cat([torch.zeros_like(z_B1), z_B1], dim=1)


def unit_length(vectors_ND: Tensor) -> Tensor:
    """Divide vectors by their norm, in float32; a zero vector stays zero."""
    return F.normalize(vectors_ND.float(), dim=1, eps=1e-8)


class ScaledSimilarity(nn.Module):
    """Returns z = scale x similarity(u, v) + offset, with two trained numbers.

    z is the predicted score; with two classes the logits are (0, z). `attentune train` starts scale and offset at the
    values that fit the training rows best, so that the first predictions are those of the untrained similarity.
    """

    def __init__(self, *, outputs: int) -> None:
        super().__init__()
        if outputs > 2:
            raise ValueError(
                f"outputs: got {outputs}, expected 1 or 2 for a cosine or dot product, which is one number"
            )
        self.scale = nn.Parameter(torch.ones(1))
        self.offset = nn.Parameter(torch.zeros(1))
        self.outputs = outputs

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.offset)

    def forward(self, texts_ND: Tensor) -> Tensor:
        """Score 2 B texts, all first texts before all second texts: (B, outputs) float32."""
        z_B1 = self.scale.float() * self.features(texts_ND) + self.offset.float()
        return _score_logits(z_B1, self.outputs)

    def features(self, texts_ND: Tensor) -> Tensor:
        """Return what z is linear in: the similarity, (B, 1) float32."""
        raise NotImplementedError


class CosineSimilarity(ScaledSimilarity):
    """The cosine of both texts' vectors, scaled.

    Source: Sentence-BERT (Reimers and Gurevych 2019, section 3), with the cosine on the scale of the labels.
    """

    def features(self, texts_ND: Tensor) -> Tensor:
        return _products(unit_length(texts_ND))


class ScaledDotProduct(ScaledSimilarity):
    """The dot product of both texts' projected vectors, divided by the root of d as in attention, scaled.

    The plain dot product of two similar vectors is positive, so that without an offset nearly all pairs are predicted
    to be of the second class.
    """

    def __init__(self, *, hidden_size: int, projection: int, outputs: int) -> None:
        super().__init__(outputs=outputs)
        self.projection = nn.Linear(hidden_size, projection)

    def features(self, texts_ND: Tensor) -> Tensor:
        return _products(self.projection(texts_ND)) / math.sqrt(self.projection.out_features)


class Concatenation(nn.Module):
    """Applies a linear layer to [u, v, |u - v|, u * v].

    Source: InferSent (Conneau et al. 2017, section 3.1).
    """

    def __init__(self, *, hidden_size: int, outputs: int, with_cosine: bool = False) -> None:
        super().__init__()
        self.with_cosine = with_cosine
        self.linear = nn.Linear(4 * hidden_size + with_cosine, outputs)

    def forward(self, texts_ND: Tensor) -> Tensor:
        """Score 2 B texts, all first texts before all second texts: (B, outputs)."""
        return self.linear(self.features(texts_ND))

    def features(self, texts_ND: Tensor) -> Tensor:
        """Return the input of the linear layer: (B, 4 D), with the cosine (B, 4 D + 1)."""
        first_BD, second_BD = both(unit_length(texts_ND) if self.with_cosine else texts_ND)
        product_BD = first_BD * second_BD
        parts = [first_BD, second_BD, (first_BD - second_BD).abs(), product_BD]
        if self.with_cosine:
            parts.append(product_BD.sum(dim=1, keepdim=True))
        return torch.cat(parts, dim=1)


def build_classifier(
    *, hidden_size: int, outputs: int, combine: str | None = None, projection: int | None = None
) -> nn.Module:
    """Build the classifier: a linear layer, or for a bi-encoder what combines the two texts."""
    if combine is None:
        return nn.Linear(hidden_size, outputs)
    if combine in ("dot", "scaled-dot"):
        product = DotProduct if combine == "dot" else ScaledDotProduct
        return product(hidden_size=hidden_size, projection=projection or hidden_size, outputs=outputs)
    if combine == "cosine":
        return CosineSimilarity(outputs=outputs)
    if combine in ("concat", "concat-cosine"):
        return Concatenation(hidden_size=hidden_size, outputs=outputs, with_cosine=combine == "concat-cosine")
    raise ValueError(f"combine: got {combine!r}, expected one of {', '.join(COMBINATIONS)}")
