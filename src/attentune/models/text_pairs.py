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
        return taken(rows_BT, self.places_NU)

    def rows(self, texts_NU: Tensor) -> Tensor:
        """(B, T, ...) of the rows, from (N, U, ...) of the texts; zeros at padding."""
        rows_BT = taken(texts_NU, self.back_BT)
        return rows_BT.masked_fill(~self.mask_BT.view(*self.mask_BT.shape, *(1,) * (rows_BT.ndim - 2)), 0.0)


def taken(values: Tensor, places: Tensor) -> Tensor:
    return values.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, places.shape)


def in_rows(tokens: Tensor | None, texts: TwoTexts | None) -> Tensor | None:
    """What is told of tokens, at their places in the rows."""
    return tokens if tokens is None or texts is None else texts.rows(tokens)


def mean_of_both(layer_weights_NL: Tensor) -> Tensor:
    """(B, L), of the first and second texts of B rows."""
    return layer_weights_NL.unflatten(0, (2, -1)).mean(dim=0)


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


@dataclass(frozen=True)
class SplitPairRows:
    """Rows for a model that reads texts apart.

    Attributes:
        ids_BT: token ids, padding on the right.
        mask_BT: True at tokens that are to be read.
        second_start_B: where in its row the second text begins.
    """

    ids_BT: Tensor
    mask_BT: Tensor
    second_start_B: Tensor


def split_pair_rows(
    ids_BT: Tensor, mask_BT: Tensor, *, special_ids: Tensor, separators: int | None, max_length: int
) -> SplitPairRows | None:
    """From rows that a tokenizer has joined those that it would have made of each text by itself.

    Args:
        ids_BT: token ids of pairs: first token, first text, separators, second text, last token.
        mask_BT: True at tokens, False at padding on either side.
        special_ids: the ids that are no ordinary tokens.
        separators: how many tokens stand between the texts, each the same as the last token; None where none knows.
        max_length: where each text is cut, its own two special tokens included.

    Returns:
        The rows; None where one is no such row, or could be read in more ways than one.
    """
    if not separators:
        return None
    special = set(special_ids.tolist())
    parted: list[tuple[list[int], list[int]]] = []
    for row_T, is_read_T in zip(ids_BT, mask_BT, strict=True):
        ids = row_T[is_read_T].tolist()
        inner = ids[1:-1]
        places = [place for place, token in enumerate(inner) if token in special]
        if len(ids) < 2 + separators or not {ids[0], ids[-1]} <= special or ids[0] == ids[-1]:
            return None
        # Nothing special but the separators, and these side by side.
        if len(places) != separators or any(inner[place] != ids[-1] for place in places):
            return None
        if places[-1] - places[0] != separators - 1:
            return None
        texts = inner[: places[0]], inner[places[-1] + 1 :]
        first, second = ([ids[0], *text[: max_length - 2], ids[-1]] for text in texts)
        parted.append((first, second))
    return _padded(parted, ids_BT)


def _padded(parted: list[tuple[list[int], list[int]]], like: Tensor) -> SplitPairRows:
    """The texts of each row one behind the other; what stands at padding is never read."""
    rows = [torch.tensor(first + second) for first, second in parted]
    lengths_B1 = torch.tensor([len(row) for row in rows])[:, None]
    ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask_BT = torch.arange(ids_BT.shape[1])[None] < lengths_B1
    starts_B = torch.tensor([len(first) for first, _ in parted])
    return SplitPairRows(ids_BT.to(like), mask_BT.to(like.device), starts_B.to(like.device))
