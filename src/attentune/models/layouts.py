"""What the encoder reads instead of whole rows: the two texts of a pair by themselves, or windows of a long text.

A bi-encoder gets rows [CLS] a [SEP] [CLS] b [SEP] with padding on the right. Its encoder runs on single texts, all
first texts before all second texts, in one batch, and per-token values are mapped back to row layout (`TwoTexts`).

A row that is longer than a window, [CLS], tokens, [SEP], is read in windows, each [CLS], some of these tokens, [SEP]
(`Windows`). The merged output of a token is the mean over the windows that contain it; that of [CLS] and [SEP] is the
mean over all windows of the row. Layer mix, head and token gate therefore see the whole text.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from attentune.errors import ConfigError

# Special tokens of a window: [CLS] and [SEP].
SPECIAL = 2


def take_tokens(values: Tensor, places: Tensor) -> Tensor:
    return values.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, places.shape)


def _ends(mask_BT: Tensor) -> Tensor:
    """Return the position after each row's last real token, (B,)."""
    return torch.where(mask_BT, torch.arange(mask_BT.shape[1], device=mask_BT.device)[None] + 1, 0).amax(dim=1)


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


def to_rows(tokens: Tensor | None, texts: TwoTexts | None) -> Tensor | None:
    return tokens if tokens is None or texts is None else texts.rows(tokens)


def find_texts(mask_BT: Tensor, second_start_B: Tensor) -> TwoTexts:
    batch, length = mask_BT.shape
    starts_N1 = torch.cat([torch.zeros_like(second_start_B), second_start_B])[:, None]
    place_1T = torch.arange(length, device=mask_BT.device)[None]
    lengths_N1 = torch.cat([second_start_B, _ends(mask_BT) - second_start_B])[:, None]
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
    """Compute where each window of a row starts, without [CLS]; all are full, and the last one ends with the row."""
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
    ends = _ends(mask_BT).tolist()
    if max(ends) <= window:
        return None
    of_windows = [  # row, first token, tokens, and the row's end
        (row, start, min(end, window), end)
        for row, end in enumerate(ends)
        for start in window_starts(max(end - SPECIAL, 0), window, overlap)
    ]
    row_N1, start_N1, size_N1, end_N1 = torch.tensor(of_windows, device=mask_BT.device).t().unsqueeze(-1)
    place_1U = torch.arange(window, device=mask_BT.device)[None]
    within_NU = torch.where(place_1U == 0, 0, torch.where(place_1U == size_N1 - 1, end_N1 - 1, start_N1 + place_1U))
    is_there_NU = place_1U < size_N1
    places_NU = (row_N1 * length + within_NU).masked_fill(~is_there_NU, 0)
    mask_NU = is_there_NU & mask_BT.flatten()[places_NU]
    return Windows(places_NU, is_there_NU, mask_NU, (batch, length))
