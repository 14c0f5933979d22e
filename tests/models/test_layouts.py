"""Rows of two texts, split and joined again, and long texts in windows: compared with plain loops."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import HeadConfig, LayerMixConfig, ModelConfig, TokenGateConfig
from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError
from attentune.models.build import build_model, load_tokenizer
from attentune.models.layouts import TwoTexts, find_texts, window_starts
from attentune.models.saving import load_model, save_model
from helpers.tiny import FAMILIES

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


# Long texts in windows: what the encoder says of a token is the mean over the windows it stands in, in plain loops


Tiny = Callable[..., Path]
TWO = LabelSpace("classification", ("bad", "good"))
WORDS = "the film was a quiet joy and the plot never moves so we saw it in town again with a very good story"
LONG, SHORT = f"{WORDS} {WORDS}", "a good film"
WINDOW, OVERLAP = 12, 4


def build(tiny: Tiny, family: str = "bert", **options: Any) -> tuple[Any, Any]:
    settings = ModelConfig(name_or_path=str(tiny(family)), **options)
    tokenizer = load_tokenizer(settings)
    sizes = {"max_length": 90, "window": WINDOW, "window_stride": OVERLAP}
    model = build_model(settings, TWO, tokenizer, is_pair=False, seed=1, **sizes)
    return model.eval(), tokenizer


def batch_of(tokenizer: Any, *texts: str) -> Any:
    return tokenizer(list(texts), return_tensors="pt", padding=True, truncation=True, max_length=90)


@given(st.integers(0, 200), st.integers(4, 40), st.data())
def test_windows_cover_every_token_overlap_and_are_full(tokens: int, window: int, data: Any) -> None:
    overlap = data.draw(st.integers(0, window - 3))
    starts, inner = window_starts(tokens, window, overlap), window - 2
    assert starts[0] == 0
    covered = {place for start in starts for place in range(start, min(start + inner, tokens))}
    assert covered == set(range(tokens))
    assert all(start + inner <= max(tokens, inner) for start in starts)
    assert all(later - earlier <= inner - overlap for earlier, later in pairwise(starts))
    assert len(starts) == 1 or starts[-1] > starts[-2]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_encoders_output_is_that_of_plain_loops(tiny: Tiny, family: str) -> None:
    model, tokenizer = build(tiny, family)
    batch = batch_of(tokenizer, LONG, SHORT)
    with torch.inference_mode():
        found = model.encode(**batch).last_hidden_state
        for row in range(2):
            ids = batch["input_ids"][row][batch["attention_mask"][row].bool()]
            sums, counts = torch.zeros(len(ids), found.shape[-1]), torch.zeros(len(ids))
            for start in window_starts(len(ids) - 2, WINDOW, OVERLAP):
                size = min(WINDOW, len(ids))
                places = [0, *range(1 + start, start + size - 1), len(ids) - 1]
                one = model.encoder(input_ids=ids[places][None]).last_hidden_state[0]
                sums[places] += one
                counts[places] += 1
            torch.testing.assert_close(found[row, : len(ids)], sums / counts[:, None], atol=2e-5, rtol=1e-4)
            assert (found[row, len(ids) :] == 0).all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head": HeadConfig("cls-mean"), "token_gate": TokenGateConfig("ssa")},
        {"layer_mix": LayerMixConfig("weighted", squeeze=True), "head": HeadConfig("mean")},
        {"head": HeadConfig("self-attention")},
    ],
)
def test_slots_see_whole_rows_and_padding_changes_nothing(tiny: Tiny, tmp_path: Path, options: dict) -> None:
    model, tokenizer = build(tiny, **options)
    batch = batch_of(tokenizer, LONG, SHORT)
    with torch.inference_mode():
        together = model(**batch)
        for row, text in enumerate((LONG, SHORT)):
            alone = model(**batch_of(tokenizer, text))
            torch.testing.assert_close(together.logits[row], alone.logits[0], atol=2e-5, rtol=1e-4)
            if alone.token_scores is not None:
                length = alone.token_scores.shape[1]
                torch.testing.assert_close(
                    together.token_scores[row, :length], alone.token_scores[0], atol=2e-5, rtol=1e-4
                )
    save_model(model, tokenizer, tmp_path)
    again, _ = load_model(tmp_path)
    assert (again.config.window, again.config.window_stride, again.config.max_seq_length) == (WINDOW, OVERLAP, 90)
    with torch.inference_mode():
        torch.testing.assert_close(again(**batch).logits, together.logits)
    model.train()
    model(**batch, labels=torch.tensor([0, 1])).loss.backward()
    gradient = model.get_input_embeddings().weight.grad
    assert gradient.isfinite().all()
    # Also the last words of the long text have taught something.
    assert (gradient[batch["input_ids"][0][-4:-1]].abs().sum(dim=1) > 0).all()


def test_what_windows_cannot_do_is_refused(tiny: Tiny) -> None:
    model, tokenizer = build(tiny)
    model.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match="this text is split into windows"):
        model(**batch_of(tokenizer, LONG), output_attentions=True)
    settings = ModelConfig(name_or_path=str(tiny("bert")))
    with pytest.raises(ConfigError, match="got windows for pairs of texts"):
        build_model(settings, TWO, load_tokenizer(settings), max_length=90, window=12, is_pair=True, seed=1)
