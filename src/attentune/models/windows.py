"""Texts that are longer than the encoder reads at once: in overlapping windows, whose outputs are put together again.

A row is [CLS] and its tokens and [SEP]. Each window is [CLS], some tokens of the row, and [SEP]. What the encoder says
of a token is the mean over the windows that it stands in; of [CLS] and [SEP] the mean over all windows of the row. So
what comes after - layer mix, token gate, head - sees the whole text, as if it had been read at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from attentune.errors import ConfigError
from attentune.models.text_pairs import taken

# [CLS] and [SEP].
SPECIAL = 2


@dataclass(frozen=True)
class Windows:
    """The B rows of T tokens of a batch, and their N windows of U tokens.

    Attributes:
        places_NU: for each token of the windows its place in the rows, counted on from row to row; 0 at padding.
        is_there_NU: True at tokens of the windows, False at padding.
        mask_NU: True at those of them that are to be read.
        shape: (B, T).
    """

    places_NU: Tensor
    is_there_NU: Tensor
    mask_NU: Tensor
    shape: tuple[int, int]

    def texts(self, rows_BT: Tensor) -> Tensor:
        """(N, U, ...) of the windows, from (B, T, ...) of the rows; at padding stands some other token's."""
        return taken(rows_BT, self.places_NU)

    def rows(self, windows_NUD: Tensor) -> Tensor:
        """(B, T, D) of the rows: the mean over the windows that a token stands in; zeros at padding."""
        batch, length = self.shape
        places_K = self.places_NU[self.is_there_NU]
        values_KD = windows_NUD[self.is_there_NU].float()
        sums = values_KD.new_zeros(batch * length, values_KD.shape[-1]).index_add(0, places_K, values_KD)
        counts = values_KD.new_zeros(batch * length).index_add(0, places_K, torch.ones_like(values_KD[:, 0]))
        return (sums / counts.clamp(min=1.0)[:, None]).to(windows_NUD.dtype).unflatten(0, (batch, length))

    def merged(self, output: Any) -> BaseModelOutput:
        """An encoder's output for the windows as one for the rows.

        Raises:
            ConfigError: it has attention probabilities, which windows have only of their own tokens.
        """
        if getattr(output, "attentions", None) is not None:
            raise ConfigError(
                "attention: this text is read in windows (data.long_texts), which attend to their own tokens only;"
                " explain a shorter text, or take another method."
            )
        layers = getattr(output, "hidden_states", None)
        return BaseModelOutput(
            last_hidden_state=self.rows(output.last_hidden_state),
            hidden_states=None if layers is None else tuple(self.rows(layer) for layer in layers),
        )


def window_starts(tokens: int, window: int, overlap: int) -> list[int]:
    """Where each window of a row begins, counted in its ordinary tokens from 0.

    All windows are full but that of a short row: the last one is moved back to the row's end, and so may overlap more.

    Args:
        tokens: of the row, without [CLS] and [SEP].
        window: tokens that are read at once, with [CLS] and [SEP].
        overlap: ordinary tokens that a window shares with the one before.
    """
    inner = window - SPECIAL
    if tokens <= inner:
        return [0]
    count = math.ceil((tokens - inner) / (inner - overlap)) + 1
    return [min(number * (inner - overlap), tokens - inner) for number in range(count)]


def find_windows(mask_BT: Tensor, window: int | None, overlap: int) -> Windows | None:
    """The windows of these rows; None where each row is short enough to be read at once.

    Args:
        mask_BT: True at tokens to be read. Padding comes last in each row; tokens in between may be passed over.
        window, overlap: as in `window_starts`; None for no windows.
    """
    batch, length = mask_BT.shape
    if window is None or length <= window:
        return None
    ends_B = torch.where(mask_BT, torch.arange(length, device=mask_BT.device)[None] + 1, 0).amax(dim=1).tolist()
    if max(ends_B) <= window:
        return None
    rows, starts, sizes = [], [], []
    for row, end in enumerate(ends_B):
        for start in window_starts(max(end - SPECIAL, 0), window, overlap):
            rows.append(row)
            starts.append(start)
            sizes.append(min(end, window))
    row_N1, start_N1, size_N1, end_N1 = (
        torch.tensor(values, device=mask_BT.device)[:, None]
        for values in (rows, starts, sizes, [ends_B[row] for row in rows])
    )
    place_1U = torch.arange(window, device=mask_BT.device)[None]
    within_NU = torch.where(place_1U == 0, 0, torch.where(place_1U == size_N1 - 1, end_N1 - 1, start_N1 + place_1U))
    is_there_NU = place_1U < size_N1
    places_NU = (row_N1 * length + within_NU).masked_fill(~is_there_NU, 0)
    mask_NU = is_there_NU & mask_BT.flatten()[places_NU]
    return Windows(places_NU, is_there_NU, mask_NU, (batch, length))
