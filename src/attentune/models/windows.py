"""Sliding windows for texts longer than the encoder's maximum length; their outputs are merged per token.

A row is [CLS], tokens, [SEP]; each window is [CLS], some of these tokens, [SEP]. The merged output of a token is the
mean over the windows that contain it; that of [CLS] and [SEP] is the mean over all windows of the row. Layer mix, head
and token gate therefore see the whole text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from attentune.errors import ConfigError
from attentune.models.text_pairs import take_tokens

# Special tokens of a window: [CLS] and [SEP].
SPECIAL = 2


@dataclass(frozen=True)
class Windows:
    """Maps between the B rows of T tokens of a batch and their N windows of U tokens."""

    places_NU: Tensor  # for each token of the windows its index in the flattened rows; 0 at padding
    is_there_NU: Tensor  # True at tokens of the windows, False at padding
    mask_NU: Tensor  # True at those of them to attend to
    shape: tuple[int, int]  # (B, T)

    def texts(self, rows_BT: Tensor) -> Tensor:
        """Map (B, T, ...) of the rows to (N, U, ...) of the windows; padding gets an arbitrary token's value."""
        return take_tokens(rows_BT, self.places_NU)

    def rows(self, windows_NUD: Tensor) -> Tensor:
        """Merge (N, U, D) to (B, T, D): the mean over the windows that contain a token; zeros at padding."""
        batch, length = self.shape
        places_K = self.places_NU[self.is_there_NU]
        values_KD = windows_NUD[self.is_there_NU].float()
        sums = values_KD.new_zeros(batch * length, values_KD.shape[-1]).index_add(0, places_K, values_KD)
        counts = values_KD.new_zeros(batch * length).index_add(0, places_K, torch.ones_like(values_KD[:, 0]))
        return (sums / counts.clamp(min=1.0)[:, None]).to(windows_NUD.dtype).unflatten(0, (batch, length))

    def merged(self, output: Any) -> BaseModelOutput:
        """Merge an encoder's output for the windows into one for the rows."""
        if getattr(output, "attentions", None) is not None:
            raise ConfigError(
                "attention: this text is split into windows (data.long_texts), each of which attends to its own tokens"
                " only, expected a text of one window; explain a shorter text, or use another method."
            )
        layers = getattr(output, "hidden_states", None)
        return BaseModelOutput(
            last_hidden_state=self.rows(output.last_hidden_state),
            hidden_states=None if layers is None else tuple(self.rows(layer) for layer in layers),
        )


def window_starts(tokens: int, window: int, overlap: int) -> list[int]:
    """Compute where each window of a row starts, as an index into its tokens without [CLS].

    All windows are full except that of a short row; the last one is moved back to end with the row, so it may overlap
    more.
    """
    inner = window - SPECIAL
    if tokens <= inner:
        return [0]
    count = math.ceil((tokens - inner) / (inner - overlap)) + 1
    return [min(number * (inner - overlap), tokens - inner) for number in range(count)]


def find_windows(mask_BT: Tensor, window: int | None, overlap: int) -> Windows | None:
    """Split rows into windows; None if no row is longer than one."""
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
