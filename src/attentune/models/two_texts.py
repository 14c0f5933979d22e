"""Two texts in one row, and each by itself: where the tokens of the one stand in the other.

A batch of pairs that are read apart comes as rows, [CLS] a [SEP] [CLS] b [SEP] and padding on the right. The encoder
reads texts: first the first ones of all rows, then their second ones, in one batch. What is told of single tokens goes
back to their places in the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TwoTexts:
    """The B rows of T tokens of a batch, and their N = 2 B texts of U tokens.

    Attributes:
        places_NU: for each token of the texts its place in the rows, counted on from row to row; 0 at padding.
        mask_NU: True at tokens of the texts that are to be read.
        back_BT: for each token of the rows its place in the texts, counted on from text to text; 0 at padding.
        mask_BT: True at tokens of the rows that are to be read.
    """

    places_NU: Tensor
    mask_NU: Tensor
    back_BT: Tensor
    mask_BT: Tensor

    def texts(self, rows_BT: Tensor) -> Tensor:
        """(N, U, ...) of the texts, from (B, T, ...) of the rows; at padding stands some other token's."""
        return _taken(rows_BT, self.places_NU)

    def rows(self, texts_NU: Tensor) -> Tensor:
        """(B, T, ...) of the rows, from (N, U, ...) of the texts; zeros at padding."""
        rows_BT = _taken(texts_NU, self.back_BT)
        return rows_BT.masked_fill(~self.mask_BT.view(*self.mask_BT.shape, *(1,) * (rows_BT.ndim - 2)), 0.0)


def _taken(values: Tensor, places: Tensor) -> Tensor:
    return values.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, places.shape)


def find_texts(mask_BT: Tensor, second_start_B: Tensor) -> TwoTexts:
    """Where the texts of these rows stand.

    Args:
        mask_BT: True at tokens to be read. Padding comes last in each row; tokens in between may be passed over.
        second_start_B: where in its row the second text begins.
    """
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
    """How many tokens the longest text has, at least one; a dynamic size in a graph that is exported."""
    if not torch.compiler.is_exporting():
        return max(1, int(lengths_N1.max()))
    longest = lengths_N1.max().clamp(min=1).item()
    torch._check(longest >= 1)
    torch._check(longest <= length)
    return longest  # type: ignore[return-value]
