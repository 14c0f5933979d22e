"""How well the tokens of two texts match each other, as a few numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

# Numbers of a pair: from the token ids, and from each of `depths`.
_OF_IDS, _OF_STATES = 9, 7
NUM_FEATURES = _OF_IDS + 3 * _OF_STATES


@dataclass(frozen=True)
class TokenStates:
    """The tokens of one text in a frozen encoder, without special tokens (unless it has no others).

    Attributes:
        ids_T: token ids.
        states_LTD: float32 hidden states at the `depths` of the encoder.
        means_LD: their means over all tokens of the text.
    """

    ids_T: np.ndarray
    states_LTD: np.ndarray
    means_LD: np.ndarray


def depths(layers: int) -> tuple[int, int, int]:
    """Return the hidden states that are compared: the embeddings, those of the middle layer and of the last one."""
    return 0, layers // 2, layers


def alignment_features(first: TokenStates, second: TokenStates) -> np.ndarray:
    """Return (NUM_FEATURES,) float32, how well the tokens of two texts match.

    From the ids: the share of each text's tokens that the other one has, their Jaccard index, the share of each text's
    pairs of neighbours that the other one has, the logarithms of both lengths and of the numbers of tokens that the
    other one does not have. At each depth: each token's highest cosine similarity to a token of the other text - mean,
    minimum and standard deviation over the tokens, for both texts - and the cosine of the mean vectors.

    Source: BERTScore (Zhang et al. 2020, section 3: recall and precision by greedy matching).
    """
    numbers = _id_features(first.ids_T.tolist(), second.ids_T.tolist())
    for one_TD, other_UD, mean_D, other_mean_D in zip(
        _unit(first.states_LTD), _unit(second.states_LTD), _unit(first.means_LD), _unit(second.means_LD), strict=True
    ):
        cosines_TU = one_TD @ other_UD.T
        if not cosines_TU.size:  # a tokenizer without special tokens has none for an empty text
            cosines_TU = np.zeros((1, 1), dtype=np.float32)
        best_T, best_U = cosines_TU.max(axis=1), cosines_TU.max(axis=0)
        for best in (best_T, best_U):
            numbers += [best.mean(), best.min(), best.std()]
        numbers.append(mean_D @ other_mean_D)
    return np.array(numbers, dtype=np.float32)


def _id_features(first: Sequence[int], second: Sequence[int]) -> list[float]:
    sets, pairs = [set(first), set(second)], [set(pairwise(ids)) for ids in (first, second)]
    both, both_pairs = sets[0] & sets[1], pairs[0] & pairs[1]
    shared = [sum(one in both for one in ids) for ids in (first, second)]
    lengths = [max(1, len(first)), max(1, len(second))]
    return [
        *(count / length for count, length in zip(shared, lengths, strict=True)),
        len(both) / max(1, len(sets[0] | sets[1])),
        *(len(both_pairs) / max(1, len(own)) for own in pairs),
        *(float(np.log(length)) for length in lengths),
        *(float(np.log1p(len(ids) - count)) for count, ids in zip(shared, (first, second), strict=True)),
    ]


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def chunks(lengths: Sequence[int], most: int) -> Iterator[range]:
    """Yield consecutive ranges of items whose lengths add up to at most `most`, or of one longer item."""
    start, total = 0, 0
    for number, length in enumerate(lengths):
        if number > start and total + length > most:
            yield range(start, number)
            start, total = number, 0
        total += length
    if len(lengths):
        yield range(start, len(lengths))
