"""How well tokens match: the features against plain loops, and those of a frozen encoder against each text alone."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attentune.baselines import frozen
from attentune.baselines.frozen import (
    NUM_FEATURES,
    FrozenEncoder,
    TokenAlignment,
    TokenStates,
    alignment_features,
    chunks,
)
from attentune.config import ModelConfig
from attentune.data.dataset import LabelSpace, TextRows
from attentune.errors import DataError
from attentune.models.build import build_model, load_tokenizer
from helpers.tiny_models import FIRST, LONG, SECOND, rows_of

Tiny = Callable[..., Path]
# Of very different lengths, so that texts are padded; one of a single token, two empty ones, one pair twice.
FIRSTS, SECONDS = [FIRST, "a", LONG, "", FIRST, "the film", ""], [SECOND, LONG, "a", SECOND, SECOND, "film the", ""]


def random_states(tokens: int, seed: int, depth: int = 3, width: int = 5, vocabulary: int = 6) -> TokenStates:
    generator = np.random.default_rng([tokens, seed])
    states_LTD = generator.normal(size=(depth, tokens, width)).astype(np.float32)
    means_LD = generator.normal(size=(depth, width)).astype(np.float32)  # not those of the states, to tell them apart
    return TokenStates(generator.integers(0, vocabulary, tokens), states_LTD, means_LD)


def cosine(u: Sequence[float], v: Sequence[float]) -> float:
    product, length_u, length_v = (sum(x * y for x, y in zip(a, b, strict=True)) for a, b in ((u, v), (u, u), (v, v)))
    return float(product / math.sqrt(length_u * length_v))


def neighbours(ids: Sequence[int]) -> set[tuple[int, int]]:
    return {(ids[place], ids[place + 1]) for place in range(len(ids) - 1)}


def by_loops(first: TokenStates, second: TokenStates) -> list[float]:
    """The features as the docstring of `alignment_features` has them."""
    both = [(first, second), (second, first)]
    ids = [([int(one) for one in own.ids_T], [int(one) for one in other.ids_T]) for own, other in both]
    numbers = [sum(1 for one in own if one in other) / len(own) for own, other in ids]
    everything = {*ids[0][0], *ids[0][1]}
    numbers.append(sum(1 for one in everything if one in ids[0][0] and one in ids[0][1]) / len(everything))
    for own, other in ids:
        found = [pair for pair in neighbours(own) if pair in neighbours(other)]
        numbers.append(len(found) / len(neighbours(own)) if len(own) > 1 else 0.0)
    numbers += [math.log(len(own)) for own, _ in ids]
    numbers += [math.log(1 + sum(1 for one in own if one not in other)) for own, other in ids]
    for depth in range(len(first.states_LTD)):
        for own, other in both:
            states_TD, other_UD = own.states_LTD[depth].tolist(), other.states_LTD[depth].tolist()
            best = [max(cosine(token, match) for match in other_UD) for token in states_TD]
            mean = sum(best) / len(best)
            numbers += [mean, min(best), math.sqrt(sum((one - mean) ** 2 for one in best) / len(best))]
        numbers.append(cosine(first.means_LD[depth].tolist(), second.means_LD[depth].tolist()))
    return numbers


@pytest.mark.parametrize(("tokens", "others"), [(1, 1), (1, 4), (6, 1), (5, 3), (9, 12)])
def test_features_match_plain_loops(tokens: int, others: int) -> None:
    for seed in range(5):
        first, second = random_states(tokens, seed), random_states(others, seed + 100)
        features_F = alignment_features(first, second)
        assert (features_F.shape, features_F.dtype) == ((NUM_FEATURES,), np.float32)
        np.testing.assert_allclose(features_F, by_loops(first, second), atol=2e-6)
        # Swapped texts have swapped features: the Jaccard index and the cosines of means are of both.
        swapped = [1, 0, 2, 4, 3, 6, 5, 8, 7]
        swapped += [9 + 7 * depth + place for depth in range(3) for place in (3, 4, 5, 0, 1, 2, 6)]
        np.testing.assert_allclose(alignment_features(second, first), features_F[swapped], atol=2e-6)


def test_a_text_matches_itself_and_states_of_zeros_match_nothing() -> None:
    text = random_states(4, 1, vocabulary=1000)
    of_ids, of_depth = [1, 1, 1, 1, 1, math.log(4), math.log(4), 0, 0], [1, 1, 0, 1, 1, 0, 1]
    np.testing.assert_allclose(alignment_features(text, text), of_ids + 3 * of_depth, atol=1e-6)
    zeros = TokenStates(text.ids_T, np.zeros_like(text.states_LTD), np.zeros_like(text.means_LD))
    np.testing.assert_array_equal(alignment_features(text, zeros)[9:], np.zeros(21))


def test_texts_without_any_token_match_nothing() -> None:
    none, some = random_states(0, 1), random_states(3, 2)
    features_F = alignment_features(none, some)
    places = [6, 8, 15, 22, 29]
    cosines = [cosine(u.tolist(), v.tolist()) for u, v in zip(none.means_LD, some.means_LD, strict=True)]
    np.testing.assert_allclose(features_F[places], [math.log(3), math.log(4), *cosines], atol=2e-6)
    assert not np.delete(features_F, places).any()
    assert np.isfinite(alignment_features(none, none)).all()


@given(lengths=st.lists(st.integers(0, 9), max_size=20), most=st.integers(1, 15))
def test_chunks_are_consecutive_and_as_long_as_allowed(lengths: list[int], most: int) -> None:
    parts = list(chunks(lengths, most))
    assert [place for part in parts for place in part] == list(range(len(lengths)))
    totals = [sum(lengths[place] for place in part) for part in parts]
    assert all(part and (total <= most or len(part) == 1) for part, total in zip(parts, totals, strict=True))
    # The first item of the next one does not fit any more.
    assert all(
        total + lengths[part.stop] > most for part, total in zip(parts, totals, strict=True) if part.stop < len(lengths)
    )


def encoder_of(folder: Path, max_length: int = 32) -> FrozenEncoder:
    return FrozenEncoder(ModelConfig(name_or_path=str(folder)), max_length, use_cpu=True)


def pairs_of(firsts: Sequence[str] = FIRSTS, seconds: Sequence[str] = SECONDS) -> TextRows:
    return rows_of(firsts, seconds)


@torch.no_grad()
def alone(text: str, tokenizer: Any, encoder: Any) -> TokenStates:
    """The tokens of a text that is encoded without others, so without padding."""
    inputs = tokenizer([text], return_tensors="pt", truncation=True, max_length=32)
    ids = inputs["input_ids"][0].tolist()
    hidden = encoder(**inputs, output_hidden_states=True).hidden_states
    chosen_LTD = torch.stack([hidden[depth][0] for depth in (0, (len(hidden) - 1) // 2, len(hidden) - 1)]).numpy()
    special = tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)
    kept = [place for place, is_special in enumerate(special) if not is_special] or list(range(len(ids)))
    return TokenStates(np.array(ids)[kept], chosen_LTD[:, kept], chosen_LTD.mean(axis=1))


def expected(made: FrozenEncoder, rows: TextRows) -> np.ndarray:
    tokenizer = load_tokenizer(made.encoder)
    space = LabelSpace("regression")
    model = build_model(made.encoder, space, tokenizer, max_length=32, is_pair=False, seed=0).eval()
    states = {text: alone(text, tokenizer, model.encoder) for text in {*rows.texts, *rows.pairs}}
    pairs = zip(rows.texts, rows.pairs, strict=True)
    return np.array([by_loops(states[first], states[second]) for first, second in pairs])


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "modernbert"])
def test_alignments_are_those_of_texts_encoded_alone(family: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    made = encoder_of(tiny(family))
    wanted_NF = expected(made, pairs_of())
    np.testing.assert_allclose(made.alignments(pairs_of()), wanted_NF, atol=1e-5)
    monkeypatch.setattr(frozen, "has_fast_bf16", lambda device: True)
    rounded_NF = FrozenEncoder(made.encoder, made.max_length, use_cpu=True, in_bf16=True).alignments(pairs_of())
    np.testing.assert_allclose(rounded_NF, wanted_NF, atol=0.05)
    assert np.abs(rounded_NF - wanted_NF).max() > 1e-4


def test_each_pair_and_each_of_its_texts_is_encoded_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    made, encoded = encoder_of(tiny("bert")), []
    batches, texts = (
        made._batches,
        list(dict.fromkeys(text for pair in zip(FIRSTS, SECONDS, strict=True) for text in pair)),
    )
    monkeypatch.setattr(
        made,
        "_batches",
        lambda features, rows, **how: encoded.extend(texts[row] for row in rows) or batches(features, rows, **how),
    )
    features_NF = made.alignments(pairs_of())
    assert sorted(encoded) == sorted({*FIRSTS, *SECONDS})
    np.testing.assert_array_equal(features_NF[0], features_NF[4])
    assert len(made._alignments) == 6
    assert made.seconds > 0
    encoded.clear()
    np.testing.assert_array_equal(made.alignments(pairs_of(FIRSTS[::-1], SECONDS[::-1])), features_NF[::-1])
    assert encoded == []
    made.alignments(pairs_of(SECONDS, FIRSTS))  # the other order has other features
    assert len(made._alignments) == 9
    made.alignments(pairs_of([], []))
    assert made.alignments(pairs_of([], [])).shape == (0, NUM_FEATURES)


def test_few_tokens_at_a_time_give_the_same_features(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted_NF = encoder_of(tiny("bert")).alignments(pairs_of())
    monkeypatch.setattr(frozen, "_HELD_TOKENS", 40)
    limited, calls = encoder_of(tiny("bert")), []
    states = limited._token_states
    monkeypatch.setattr(limited, "_token_states", lambda features, rows: calls.append(1) or states(features, rows))
    np.testing.assert_allclose(limited.alignments(pairs_of()), wanted_NF, atol=0.05)
    assert len(calls) > 2


def test_texts_that_cannot_be_encoded_and_single_texts_are_refused(tiny: Tiny) -> None:
    made = encoder_of(tiny("bert"))
    with pytest.raises(DataError, match="surrogate"):
        made.alignments(pairs_of(["a"], ["\ud800"]))
    with pytest.raises(ValueError, match="rows are single texts; expected pairs"):
        made.alignments(rows_of(["a"]))


def test_the_baseline_learns_which_texts_have_the_same_tokens(tiny: Tiny) -> None:
    words = ["good", "film", "bad", "dogs", "run", "quiet", "street", "no", "train", "guitar"]
    firsts = [f"{words[number % 10]} {words[number * 3 % 10]} {words[(number + 4) % 10]}" for number in range(40)]
    seconds = [
        " ".join(reversed(text.split())) if number % 2 else firsts[(number + 7) % 40]
        for number, text in enumerate(firsts)
    ]
    rows = rows_of(firsts, seconds, [number % 2 for number in range(40)])
    space = LabelSpace("classification", ("other", "same"))
    baseline = TokenAlignment(encoder_of(tiny("bert"))).fit(rows, space)
    assert (baseline.logits(rows).argmax(axis=1) == rows.labels).all()
    assert baseline.linear.weights_PD.shape == (2, NUM_FEATURES)
