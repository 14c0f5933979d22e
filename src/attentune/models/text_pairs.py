"""Bi-encoder layouts: rows that hold both texts of a pair, and a batch of single texts.

A bi-encoder gets rows [CLS] a [SEP] [CLS] b [SEP] with padding on the right. Its encoder runs on single texts, all
first texts before all second texts, in one batch. Per-token values are mapped back to row layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TwoTexts:
    """Maps between the B rows of T tokens of a batch and their N = 2 B texts of U tokens."""

    places_NU: Tensor  # for each token of the texts its index in the flattened rows; 0 at padding
    mask_NU: Tensor  # True at real tokens of the texts
    back_BT: Tensor  # for each token of the rows its index in the flattened texts; 0 at padding
    mask_BT: Tensor  # True at real tokens of the rows

    def texts(self, rows_BT: Tensor) -> Tensor:
        """Map (B, T, ...) of the rows to (N, U, ...) of the texts; padding gets an arbitrary token's value."""
        return take_tokens(rows_BT, self.places_NU)

    def rows(self, texts_NU: Tensor) -> Tensor:
        """Map (N, U, ...) of the texts to (B, T, ...) of the rows; zeros at padding."""
        rows_BT = take_tokens(texts_NU, self.back_BT)
        return rows_BT.masked_fill(~self.mask_BT.view(*self.mask_BT.shape, *(1,) * (rows_BT.ndim - 2)), 0.0)


def take_tokens(values: Tensor, places: Tensor) -> Tensor:
    """Index (B, T, ...) values by positions in the flattened first two dimensions."""
    return values.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, places.shape)


def to_rows(tokens: Tensor | None, texts: TwoTexts | None) -> Tensor | None:
    """Map per-token values of a bi-encoder's texts back to row layout; others unchanged."""
    return tokens if tokens is None or texts is None else texts.rows(tokens)


def mean_over_pair(layer_weights_NL: Tensor) -> Tensor:
    """Average over the first and second texts: from (2 B, L) to (B, L)."""
    return layer_weights_NL.unflatten(0, (2, -1)).mean(dim=0)


def find_texts(mask_BT: Tensor, second_start_B: Tensor) -> TwoTexts:
    """Locate the two texts of each row."""
    batch, length = mask_BT.shape
    starts_N1 = torch.cat([torch.zeros_like(second_start_B), second_start_B])[:, None]
    place_1T = torch.arange(length, device=mask_BT.device)[None]
    ends_B = torch.where(mask_BT, place_1T + 1, 0).amax(dim=1)
    lengths_N1 = torch.cat([second_start_B, ends_B - second_start_B])[:, None]
    longest = _longest(lengths_N1, length)
    row_B1 = torch.arange(batch, device=mask_BT.device)[:, None]
    place_1U = torch.arange(longest, device=mask_BT.device)[None]
    is_text_NU = place_1U < lengths_N1
    places_NU = (row_B1.repeat(2, 1) * length + starts_N1 + place_1U).masked_fill(~is_text_NU, 0)
    mask_NU = is_text_NU & mask_BT.flatten()[places_NU]

    second_BT = (place_1T >= second_start_B[:, None]).long()
    back_BT = (row_B1 + batch * second_BT) * longest + place_1T - second_start_B[:, None] * second_BT
    return TwoTexts(places_NU, mask_NU, back_BT.masked_fill(~mask_BT, 0), mask_BT)


def _longest(lengths_N1: Tensor, length: int) -> int:
    """Return the length of the longest text, at least 1; a dynamic size while the graph is exported."""
    if not torch.compiler.is_exporting():
        return max(1, int(lengths_N1.max()))
    longest = lengths_N1.max().clamp(min=1).item()
    torch._check(longest >= 1)
    torch._check(longest <= length)
    return longest  # type: ignore[return-value]


@dataclass(frozen=True)
class SplitPairRows:
    """Rows in the layout of a bi-encoder."""

    ids_BT: Tensor  # token ids, padding on the right
    mask_BT: Tensor  # True at real tokens
    second_start_B: Tensor  # the position at which the second text begins in its row


def split_pair_rows(
    ids_BT: Tensor, mask_BT: Tensor, *, special_ids: Tensor, separators: int | None, max_length: int
) -> SplitPairRows | None:
    """Convert rows in which a tokenizer has joined two texts to the layout of a bi-encoder."""
    if not separators:
        return None
    special = set(special_ids.tolist())
    pairs: list[tuple[list[int], list[int]]] = []
    for row_T, is_read_T in zip(ids_BT, mask_BT, strict=True):
        ids = row_T[is_read_T].tolist()
        inner = ids[1:-1]
        places = [place for place, token in enumerate(inner) if token in special]
        if len(ids) < 2 + separators or not {ids[0], ids[-1]} <= special or ids[0] == ids[-1]:
            return None
        # No special token but the separators, and these adjacent.
        if len(places) != separators or any(inner[place] != ids[-1] for place in places):
            return None
        if places[-1] - places[0] != separators - 1:
            return None
        texts = inner[: places[0]], inner[places[-1] + 1 :]
        first, second = ([ids[0], *text[: max_length - 2], ids[-1]] for text in texts)
        pairs.append((first, second))
    return _padded(pairs, ids_BT)


def _padded(pairs: list[tuple[list[int], list[int]]], like: Tensor) -> SplitPairRows:
    """Concatenate the two texts of each row and pad the rows."""
    rows = [torch.tensor(first + second) for first, second in pairs]
    lengths_B1 = torch.tensor([len(row) for row in rows])[:, None]
    ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask_BT = torch.arange(ids_BT.shape[1])[None] < lengths_B1
    starts_B = torch.tensor([len(first) for first, _ in pairs])
    return SplitPairRows(ids_BT.to(like), mask_BT.to(like.device), starts_B.to(like.device))
