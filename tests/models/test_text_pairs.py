"""Rows of two texts, split and joined again, compared with plain loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attentune.models.layouts import TwoTexts, find_texts, split_pair_rows

LENGTHS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5)


def batch(lengths: list[tuple[int, int]], padding: int) -> tuple[torch.Tensor, TwoTexts]:
    """Rows whose every place holds a number of its own, and where their texts stand."""
    length = max(first + second for first, second in lengths) + padding
    rows_BT = torch.arange(len(lengths) * max(1, length)).view(len(lengths), -1) + 1
    mask_BT = torch.tensor([[place < sum(pair) for place in range(rows_BT.shape[1])] for pair in lengths])
    return rows_BT, find_texts(mask_BT, torch.tensor([first for first, _ in lengths]))


@given(LENGTHS, st.integers(0, 3))
def test_texts_are_the_first_ones_of_all_rows_and_then_the_second_ones(lengths, padding):
    rows_BT, found = batch(lengths, padding)
    texts_NU = found.texts(rows_BT)
    expected = [row[:first] for row, (first, _) in zip(rows_BT.tolist(), lengths, strict=True)]
    expected += [row[first : first + second] for row, (first, second) in zip(rows_BT.tolist(), lengths, strict=True)]
    assert texts_NU.shape == (2 * len(lengths), max(1, *map(len, expected)))
    assert [text[mask].tolist() for text, mask in zip(texts_NU, found.mask_NU, strict=True)] == expected
    # Padding stands on the right of each text.
    assert all(mask.tolist() == sorted(mask.tolist(), reverse=True) for mask in found.mask_NU)


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


# Rows of pairs: 1 is [CLS], 2 is [SEP], 0 is [PAD], 3 and up are words.
ORDINARY = st.lists(st.integers(3, 9), max_size=6)


def split_pairs(
    rows: list[list[int]], separators: int | None, *, left: bool = False, limit: int = 5
) -> tuple[torch.Tensor, ...] | None:
    length = max(map(len, rows))
    padded = [[0] * (length - len(row)) + row if left else row + [0] * (length - len(row)) for row in rows]
    ids_BT = torch.tensor(padded)
    special_ids = torch.tensor([0, 1, 2])
    return split_pair_rows(ids_BT, ids_BT != 0, special_ids=special_ids, separators=separators, max_length=limit)


@given(st.lists(st.tuples(ORDINARY, ORDINARY), min_size=1, max_size=4), st.sampled_from([1, 2]), st.booleans())
def test_pair_rows_are_split_into_the_rows_of_each_text(pairs, separators, left):
    found = split_pairs([[1, *first, *[2] * separators, *second, 2] for first, second in pairs], separators, left=left)
    assert found is not None
    for row, (first, second) in enumerate(pairs):
        ids_BT, mask_BT, starts_B = found
        begin, ids = int(starts_B[row]), ids_BT[row][mask_BT[row]].tolist()
        assert ids[:begin] == [1, *first[:3], 2]
        assert ids[begin:] == [1, *second[:3], 2]


@pytest.mark.parametrize(
    ("row", "separators"),
    [
        pytest.param([1, 3, 2], 1, id="one text"),
        pytest.param([1, 3, 2], 2, id="one text, two wanted"),
        pytest.param([1, 3, 2, 4, 2, 5, 2], 1, id="three texts"),
        pytest.param([1, 3, 2, 2, 4, 2], 1, id="two separators, one wanted"),
        pytest.param([1, 3, 2, 4, 2], 2, id="one separator, two wanted"),
        pytest.param([1, 3, 2, 4, 2, 5, 2], 2, id="two separators apart"),
        pytest.param([1, 3, 1, 4, 2], 1, id="another separator"),
        pytest.param([3, 4, 2, 5, 2], 1, id="no beginning"),
        pytest.param([1, 4, 2, 5, 6], 1, id="no end"),
        pytest.param([2, 4, 2, 5, 2], 1, id="begins as it ends"),
        pytest.param([1, 3, 2, 4, 2], None, id="nobody knows how they are joined"),
        pytest.param([2], 1, id="one token"),
    ],
)
def test_a_row_that_could_be_read_otherwise_is_left_alone(row: list[int], separators: int | None) -> None:
    assert split_pairs([[1, 3, 2, 4, 2], row], separators) is None
