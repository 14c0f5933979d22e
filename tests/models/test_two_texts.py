"""Rows of two texts, taken apart and put together again, against plain loops."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attentune.models.two_texts import TwoTexts, find_texts

LENGTHS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5)


def batch(lengths: list[tuple[int, int]], padding: int) -> tuple[torch.Tensor, TwoTexts]:
    """Rows whose every place holds a number of its own, and where their texts stand."""
    length = max(first + second for first, second in lengths) + padding
    rows_BT = torch.arange(len(lengths) * max(1, length)).view(len(lengths), -1) + 1
    mask_BT = torch.tensor([[place < sum(pair) for place in range(rows_BT.shape[1])] for pair in lengths])
    return rows_BT, find_texts(mask_BT, torch.tensor([first for first, _ in lengths]))


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(0, 3))
def test_texts_are_the_first_ones_of_all_rows_and_then_the_second_ones(
    lengths: list[tuple[int, int]], padding: int
) -> None:
    rows_BT, found = batch(lengths, padding)
    texts_NU = found.texts(rows_BT)
    expected = [row[:first] for row, (first, _) in zip(rows_BT.tolist(), lengths, strict=True)]
    expected += [row[first : first + second] for row, (first, second) in zip(rows_BT.tolist(), lengths, strict=True)]
    assert texts_NU.shape == (2 * len(lengths), max(1, *map(len, expected)))
    assert [text[mask].tolist() for text, mask in zip(texts_NU, found.mask_NU, strict=True)] == expected
    # Padding stands on the right of each text.
    assert all(mask.tolist() == sorted(mask.tolist(), reverse=True) for mask in found.mask_NU)


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(0, 3))
def test_what_is_told_of_texts_comes_back_to_its_rows(lengths: list[tuple[int, int]], padding: int) -> None:
    rows_BT, found = batch(lengths, padding)
    real_BT = torch.where(found.mask_BT, rows_BT, 0)
    assert torch.equal(found.rows(found.texts(rows_BT)), real_BT)
    both_BT2 = torch.stack([rows_BT, -rows_BT], dim=-1)
    assert torch.equal(found.rows(found.texts(both_BT2)), torch.stack([real_BT, -real_BT], dim=-1))


def test_gradients_reach_real_tokens_and_no_others() -> None:
    rows_BT, found = batch([(2, 1), (1, 3)], 2)
    values_BTE = torch.randn(*rows_BT.shape, 3, requires_grad=True)
    found.texts(values_BTE)[found.mask_NU].sum().backward()
    expected_BTE = found.mask_BT[..., None].expand_as(values_BTE).float()
    assert torch.equal(values_BTE.grad, expected_BTE)
