"""The baselines: every task type, unusual rows, files, and the features of pairs and tokens in plain loops."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from attentune.automl.portfolio import choose_members
from attentune.baselines import linear
from attentune.baselines.frozen import (
    NUM_FEATURES,
    Cosine,
    FrozenEncoder,
    FrozenLinear,
    OnFrozenEncoder,
    TokenAlignment,
    TokenStates,
    alignment_features,
    chunks,
)
from attentune.baselines.linear import (
    BASELINE_FILE,
    MANY_CLASSES,
    WEIGHTS_FILE,
    LinearModel,
    fit_linear,
    with_class_names,
)
from attentune.baselines.registry import (
    BASELINES,
    ColumnsLinear,
    Majority,
    TfidfLinear,
    baselines_for,
    load_run,
    make_baseline,
)
from attentune.config import ModelConfig, load_config
from attentune.config.schema import BASELINE_NAMES
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.models.build import build_model, load_tokenizer
from attentune.report.tables import _WORDS
from helpers.tiers import integration_unless
from helpers.tiny_models import FIRST, LONG, SECOND, rows_of

TWO, THREE = (LabelSpace("classification", names) for names in (("bad", "good"), ("bad", "fair", "good")))
SPACES = {
    "classification": THREE,
    "ordinal": LabelSpace("ordinal", ("bad", "fair", "good"), "expected-value"),
    "regression": LabelSpace("regression"),
    "multi_label": LabelSpace("multi_label", ("funny", "sad", "long")),
}
OF_PAIRS = ("cosine", "token-alignment")
WORDS = ("good film", "bad film", "the dogs run", "a quiet street", "no")


def labels_of(space: LabelSpace, rows: int) -> np.ndarray:
    numbers = np.arange(rows)
    if space.task_type == "regression":
        return numbers % 5 * 0.5
    if space.is_multilabel:
        return (numbers[:, None] % np.array([2, 3, rows + 1]) == 0).astype(np.int64)
    return numbers % 3


def rows_for(space: LabelSpace, *, is_pair: bool, rows: int = 24) -> TextRows:
    texts = [f"{WORDS[number % 5]} {number % 7}" for number in range(rows)]
    pairs = [f"{WORDS[number % 3]} {number % 4}" for number in range(rows)] if is_pair else None
    return with_extra(rows_of(texts, pairs, labels_of(space, rows)))


def with_extra(rows: TextRows) -> TextRows:
    """Rows with a column of numbers, of which some are missing, and one of categories."""
    numbers = [math.nan if row % 5 == 4 else row**2 / 4 for row in range(len(rows))]
    return replace(
        rows, extra={"price": np.array(numbers), "product": tuple("abc"[row % 3] for row in range(len(rows)))}
    )


@pytest.fixture(scope="module")
def frozen(tiny: Callable[..., Path]) -> FrozenEncoder:
    return FrozenEncoder(ModelConfig(name_or_path=str(tiny("bert", pooler=False))), 32, use_cpu=True)


def made(name: str, frozen: FrozenEncoder) -> object:
    return make_baseline(name, encoder=frozen.encoder, max_length=32, seed=1, frozen=frozen)


# Of single texts and pairs the fast tier has one for each baseline and kind of task, by turns.
CASES = [
    pytest.param(name, kind, is_pair, marks=integration_unless(name in OF_PAIRS or place % 2 == is_pair))
    for place, (name, kind) in enumerate(product(BASELINES, SPACES))
    for is_pair in (False, True)
    if is_pair or name not in OF_PAIRS
]


@pytest.mark.parametrize(("name", "kind", "is_pair"), CASES)
def test_each_baseline_fits_each_task_and_is_the_same_after_loading(
    name: str, kind: str, is_pair: bool, frozen: FrozenEncoder, tmp_path: Path
) -> None:
    space, new = SPACES[kind], rows_of(["a film", "", "unseen 12"], ["good", "x", ""] if is_pair else None)
    baseline = made(name, frozen).fit(rows_for(space, is_pair=is_pair), space)
    logits_NC = baseline.logits(new)
    assert logits_NC.shape == (3, space.num_labels)
    assert logits_NC.dtype == np.float64
    assert np.isfinite(logits_NC).all()
    if kind in ("classification", "ordinal"):
        np.testing.assert_allclose(np.exp(logits_NC).sum(axis=1), 1.0, atol=1e-9)
    baseline.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [BASELINE_FILE, WEIGHTS_FILE]
    loaded = load_run(tmp_path).baseline
    assert type(loaded) is type(baseline)
    assert (loaded.label_space, loaded.is_pair, loaded.notes) == (space, is_pair, baseline.notes)
    np.testing.assert_array_equal(loaded.logits(new), logits_NC)


NAMES = ("card_arrival", "cardArrival", "top-up failed", "c7", *(f"class {letter}" for letter in "abcdefghijklmnop"))


def test_names_of_many_classes_are_trained_on_as_texts(frozen: FrozenEncoder, tmp_path: Path) -> None:
    space = LabelSpace("classification", NAMES)
    rows = rows_of([f"{WORDS[number % 5]} {number % 9}" for number in range(40)], labels=[*range(19), 0] * 2)
    words = ["card arrival", "card Arrival", "top up failed", *NAMES[4:]]  # c7 is no word
    baseline = FrozenLinear(frozen)
    baseline.strengths = (0.1,)
    baseline.fit(rows, space).save(tmp_path)
    vectors_ND = [vector_D / np.sqrt((vector_D**2).mean()) for vector_D in frozen.vectors([*rows.texts, *words])]
    model = LogisticRegression(C=0.1, tol=1e-8, max_iter=5000).fit(vectors_ND, [*rows.labels, 0, 1, 2, *range(4, 20)])
    (scale,) = re.findall(r"outputs times ([\d.]+)", baseline.notes[0]) or ["1"]
    expected_NC = log_softmax(float(scale) * model.decision_function(vectors_ND[:40]), axis=1)
    np.testing.assert_allclose(baseline.logits(rows), expected_NC, atol=5e-3)
    np.testing.assert_allclose(load_run(tmp_path).baseline.logits(rows), baseline.logits(rows), atol=1e-4)


def test_of_many_classes_outputs_are_scaled_to_the_least_loss_of_a_strong_penalty() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(200) % 20
    features_ND = np.eye(20)[labels] + generator.normal(0, 0.2, (200, 20))
    space = LabelSpace("classification", NAMES)
    options = {"weights": None, "strengths": (0.01,), "seed": 1, "standardise": False}
    model, penalty = fit_linear(features_ND, labels, space, **options)
    note = penalty.note
    plain = LogisticRegression(C=0.01, tol=1e-8, max_iter=5000).fit(features_ND, labels)
    assert "outputs times 3.2" in note
    np.testing.assert_allclose(model.weights_PD, 3.2 * plain.coef_, atol=1e-3)
    few = LabelSpace("classification", NAMES[:19])
    note = fit_linear(features_ND[labels < 19], labels[labels < 19], few, **options)[1].note
    assert "outputs" not in note


def test_names_of_few_classes_are_not_trained_on(frozen: FrozenEncoder) -> None:
    rows = rows_of([f"{WORDS[number % 5]} {number % 9}" for number in range(38)], labels=[*range(19)] * 2)
    for name in ("frozen-linear", "tfidf-linear"):
        logits = [
            made(name, frozen).fit(rows, LabelSpace("classification", names[:19])).logits(rows)
            for names in (NAMES, [f"{number}" for number in range(19)])
        ]
        np.testing.assert_array_equal(*logits)


def test_majority_is_the_smoothed_class_frequencies() -> None:
    rows = rows_of(["a"] * 4, labels=[0, 0, 0, 1])
    np.testing.assert_allclose(np.exp(Majority().fit(rows, THREE).logits(rows))[0], np.array([4, 2, 1]) / 7)
    scores = rows_of(["a"] * 2, labels=[1.0, 4.0])
    assert Majority().fit(scores, SPACES["regression"]).logits(scores).tolist() == [[2.5], [2.5]]
    sets = rows_of(["a"] * 3)
    sets = TextRows(**{**sets.__dict__, "labels": np.array([[1, 0, 0], [1, 1, 0], [1, 0, 0]])})
    shares = 1 / (1 + np.exp(-Majority().fit(sets, SPACES["multi_label"]).logits(sets)[0]))
    np.testing.assert_allclose(shares, [3.5 / 4, 1.5 / 4, 0.5 / 4])


def test_weights_count(frozen: FrozenEncoder) -> None:
    rows = rows_of(["good", "good", "bad", "bad"] * 3, ["x"] * 12, [1, 0, 0, 0] * 3)
    heavy = TextRows(**{**rows.__dict__, "weights": np.array([9.0, 1, 1, 1] * 3)})
    for name in ("majority", "tfidf-linear", "frozen-linear"):
        plain, weighted = (made(name, frozen).fit(some, TWO).logits(rows)[0].argmax() for some in (rows, heavy))
        assert (plain, weighted) == (0, 1) or name != "majority"
        assert weighted == 1


def test_vectors_are_means_over_real_tokens_and_each_text_is_encoded_once(frozen: FrozenEncoder) -> None:
    from attentune.models.build import build_model, load_tokenizer

    texts = ["The film was good.", "no", "The film was good.", ""]
    vectors_ND = frozen.vectors(texts)
    tokenizer = load_tokenizer(frozen.encoder)
    model = build_model(frozen.encoder, SPACES["regression"], tokenizer, max_length=32, is_pair=False, seed=0).eval()
    middle_ND = frozen.vectors(texts, middle=True)
    for text, vector_D, middle_D in zip(texts, vectors_ND, middle_ND, strict=True):
        hidden = model.encoder(**tokenizer([text], return_tensors="pt"), output_hidden_states=True).hidden_states
        for found_D, states in ((vector_D, hidden[-1]), (middle_D, hidden[(len(hidden) - 1) // 2])):
            np.testing.assert_allclose(found_D, states[0].mean(dim=0).detach().numpy(), atol=0.05)
    kept = len(frozen._vectors._places)
    np.testing.assert_array_equal(frozen.vectors(texts[::-1]), vectors_ND[::-1])
    assert len(frozen._vectors._places) == kept


def test_pair_features_match_a_plain_loop(frozen: FrozenEncoder) -> None:
    rows = rows_for(THREE, is_pair=True, rows=6)
    features_NF = frozen.pair_features(rows)
    for number in range(6):
        u, v = (vector.tolist() for vector in frozen.vectors([rows.texts[number], rows.pairs[number]]))
        length_u, length_v = sum(x * x for x in u) ** 0.5, sum(x * x for x in v) ** 0.5
        u, v = [x / length_u for x in u], [x / length_v for x in v]
        expected = [*u, *v]
        expected += [abs(x - y) for x, y in zip(u, v, strict=True)]
        expected += [x * y for x, y in zip(u, v, strict=True)]
        expected.append(sum(x * y for x, y in zip(u, v, strict=True)))
        np.testing.assert_allclose(features_NF[number], expected, atol=1e-5)
        np.testing.assert_allclose(Cosine(frozen)._features(rows)[number, 0], expected[-1], atol=1e-5)


def test_tfidf_pair_features_match_a_plain_loop() -> None:
    rows = rows_of(["good film", "a a dog", ""], ["film is bad", "dog", ""], [0, 1, 0])
    baseline = TfidfLinear().fit(rows, TWO)
    features_NF = baseline._features(rows).toarray()
    for number in range(3):
        u, v = (baseline._vectors([text]).toarray()[0] for text in (rows.texts[number], rows.pairs[number]))
        first, second = set(rows.texts[number].split()), set(rows.pairs[number].split())
        both = len(first & second)
        overlap = [
            sum(x * y for x, y in zip(u, v, strict=True)),
            both / max(len(first | second), 1),
            both / max(len(first), 1),
            both / max(len(second), 1),
            (len(first) - len(second)) / max(len(first), len(second), 1),
        ]
        np.testing.assert_allclose(features_NF[number], [*u, *v, *abs(u - v), *(u * v), *overlap], atol=1e-12)


@pytest.mark.parametrize("kind", SPACES)
def test_the_reduced_fit_is_the_plain_fit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    features_ND, space = generator.normal(size=(30, 80)), SPACES[kind]
    options = {"weights": generator.uniform(0.5, 2, 30), "strengths": (0.1, 1.0), "seed": 0, "standardise": True}
    model, penalty = fit_linear(features_ND, labels_of(space, 30), space, **options)
    monkeypatch.setattr(linear._Reduced, "of", classmethod(lambda cls, features: cls(features, features, None)))
    plain, plain_penalty = fit_linear(features_ND, labels_of(space, 30), space, **options)
    assert penalty == plain_penalty
    np.testing.assert_allclose(model.weights_PD, plain.weights_PD, atol=2e-3)
    np.testing.assert_allclose(model.logits(features_ND, space), plain.logits(features_ND, space), atol=2e-2)


def test_strength_is_the_one_of_least_cross_validated_loss() -> None:
    generator = np.random.default_rng(0)
    features_ND = generator.normal(size=(300, 3))
    options = {"weights": None, "seed": 0, "standardise": False, "strengths": (0.001, 100.0)}
    clear = (features_ND[:, 0] > 0).astype(np.int64)
    assert fit_linear(features_ND, clear, TWO, **options)[1].note.startswith("C = 100")
    assert fit_linear(features_ND, generator.integers(0, 2, 300), TWO, **options)[1].note.startswith("C = 0.001")
    # A class without rows has a small probability.
    model = LinearModel(np.zeros((2, 1)), np.zeros(2), np.array([0, 2]), absent=0.01)
    np.testing.assert_allclose(np.exp(model.logits(np.zeros((1, 1)), THREE)), [[0.495, 0.01, 0.495]])


def test_many_rows_are_sampled(frozen: FrozenEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attentune.baselines.registry._MOST_ROWS", 10)
    monkeypatch.setattr("attentune.baselines.frozen._FEWEST_ROWS", 12)
    monkeypatch.setattr("attentune.baselines.frozen._BUDGET_CPU", 1.0)
    rows = rows_for(THREE, is_pair=False)
    assert "stratified sample of 10 of 24 training rows" in made("tfidf-linear", frozen).fit(rows, THREE).notes[0]
    assert "sample of 12 of 24 training rows" in made("frozen-linear", frozen).fit(rows, THREE).notes[0]


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=20), min_size=1, max_size=12),
    data=st.data(),
)
def test_any_texts_and_labels(texts: list[str], data: st.DataObject, frozen: FrozenEncoder) -> None:
    kind = data.draw(st.sampled_from(sorted(SPACES)))
    name = data.draw(st.sampled_from(sorted(BASELINES)))
    pairs = data.draw(st.permutations(texts)) if name in OF_PAIRS or data.draw(st.booleans()) else None
    space = SPACES[kind]
    labels = {
        "regression": st.floats(-1e6, 1e6),
        "multi_label": st.lists(st.integers(0, 1), min_size=3, max_size=3),
    }.get(kind, st.integers(0, 2))
    drawn = np.array([data.draw(labels) for _ in texts])
    numbers = [data.draw(st.floats(-1e100, 1e100) | st.just(math.nan)) for _ in texts]
    rows = replace(rows_of(texts, pairs, drawn), extra={"price": np.array(numbers), "product": tuple(texts)})
    logits_NC = made(name, frozen).fit(rows, space).logits(rows)
    assert logits_NC.shape == (len(texts), space.num_labels)
    assert np.isfinite(logits_NC).all()
    if kind in ("classification", "ordinal") and len(set(drawn.tolist())) == 1:
        assert (logits_NC.argmax(axis=1) == drawn).all()


def test_baselines_are_listed_wherever_they_are_and_those_of_pairs_for_pairs() -> None:
    assert {*BASELINES} == {*BASELINE_NAMES, "frozen-middle"}  # which is a member of auto only
    chosen = choose_members(is_pair=True, task_type="classification", has_columns=True, encoders=["embedded"])
    members = {member.name: member for member in chosen if member.is_baseline}
    for name in BASELINE_NAMES:
        kind = BASELINES[name]
        assert load_config(preset=name).baseline == name
        assert members[name].rows == ("pair" if name in OF_PAIRS else None)
        assert (members[name].encoder is not None) == issubclass(kind, OnFrozenEncoder)
        assert name == "majority" or name in _WORDS
    # Single texts have no baselines of pairs, and rows without columns beside the text none of these.
    for is_pair, has_columns in product((True, False), repeat=2):
        rows = replace(rows_for(TWO, is_pair=is_pair), **({} if has_columns else {"extra": {}}))
        data = TaskData("own", TWO, ("accuracy",), {"train": rows})
        lacking = (*(() if is_pair else OF_PAIRS), *(() if has_columns else ("columns-linear",)))
        assert baselines_for(data) == tuple(name for name in BASELINE_NAMES if name not in lacking)


def test_columns_beside_the_text_are_the_features_of_a_linear_model(tmp_path: Path) -> None:
    cells = ["tea", "tea", "cup", "", "cup", "pot", "tea", "cup"]
    prices = [1.0, 10.0, math.nan, 1000.0, -3.0, 2.0, 1e9, 4.0]
    extra = {"product": tuple(cells), "price": np.array(prices)}
    rows = replace(rows_of(["x"] * 8, None, np.array([0, 0, 1, 1, 1, 0, 0, 1])), extra=extra)
    baseline = ColumnsLinear()
    baseline.fit(rows, TWO).save(tmp_path)

    def expected(price: float, value: str) -> list[float]:
        features = []
        for form in (lambda x: x, lambda x: math.copysign(math.log(1 + abs(x)), x)):
            known = [form(one) for one in prices if one == one]
            mean = sum(known) / len(known)
            deviation = math.sqrt(sum((one - mean) ** 2 for one in known) / len(known))
            features.append(0.0 if price != price else max(-5.0, min(5.0, (form(price) - mean) / deviation)))
        # pot and the missing value are in one row each, so that they share the indicator of a new one.
        return [*features, float(price != price), *(float(value == one) for one in ("cup", "tea")),
                float(value not in ("cup", "tea"))]  # fmt: skip

    new_prices, new_cells = [math.nan, -1e100, 3.0], ("new", "cup", "")
    new = replace(rows_of(["", "y", "x"]), extra={"product": new_cells, "price": np.array(new_prices)})
    loaded = load_run(tmp_path).baseline
    tfidf = TfidfLinear().fit(rows, TWO)
    for rows_made, wanted in ((rows, zip(prices, cells, strict=True)), (new, zip(new_prices, new_cells, strict=True))):
        of_columns = 0.5 * np.array([expected(*one) for one in wanted])
        features_ND = np.concatenate([tfidf._features(rows_made).toarray(), of_columns], axis=1)
        np.testing.assert_allclose(loaded._features(rows_made).toarray(), features_ND, rtol=1e-12, atol=1e-12)
        logits_NP = features_ND @ baseline.linear.weights_PD.T + baseline.linear.bias_P
        np.testing.assert_allclose(loaded.logits(rows_made), log_softmax(logits_NP, axis=1), atol=1e-12)
    assert loaded.infrequent(new) == {"product": "new"}
    # Rows without the columns are rows in which all cells are missing.
    missing = replace(new, extra={"product": ("",) * 3, "price": np.full(3, math.nan)})
    np.testing.assert_array_equal(loaded.logits(replace(new, extra={})), loaded.logits(missing))


def test_refusals(frozen: FrozenEncoder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"texts: got no labelled rows, expected at least one to fit majority on"):
        Majority().fit(rows_of(["a"]), TWO)
    with pytest.raises(ConfigError, match=r"columns-linear needs columns beside the text.*--extra_columns"):
        ColumnsLinear().fit(replace(rows_for(TWO, is_pair=False), extra={}), TWO)
    for name in OF_PAIRS:
        unloaded = FrozenEncoder(frozen.encoder, 32)
        with pytest.raises(ConfigError, match=rf"{name} needs pairs of texts, but the rows are single text"):
            made(name, unloaded).fit(rows_of(["a"], labels=[0]), TWO)
        assert unloaded._loaded is None  # refused before an encoder is loaded
    fitted = Majority().fit(rows_of(["a"], labels=[0]), TWO)
    with pytest.raises(DataError, match=r"got pairs of texts, expected single texts"):
        fitted.logits(rows_of(["a"], ["b"]))
    with pytest.raises(CheckpointError, match=r"no baseline could be loaded.*Expected baseline\.json"):
        load_run(tmp_path)


def test_damaged_files_are_refused(frozen: FrozenEncoder, tmp_path: Path) -> None:
    made("frozen-linear", frozen).fit(rows_for(TWO, is_pair=False, rows=6), THREE).save(tmp_path)
    good = json.loads((tmp_path / BASELINE_FILE).read_text())
    weights = (tmp_path / WEIGHTS_FILE).read_bytes()

    def refused(match: str, **changes: object) -> None:
        (tmp_path / BASELINE_FILE).write_text(json.dumps({**good, **changes}))
        with pytest.raises(CheckpointError, match=match):
            load_run(tmp_path)

    refused("holds the baseline 'other'", name="other")
    refused("do not fit", is_pair=True)
    refused("do not fit 2 labels", label_space={**good["label_space"], "names": ["a", "b"]})
    refused("another encoder", settings={**good["settings"], "encoder_fingerprint": "0"})
    refused("no baseline could be loaded", settings={})
    (tmp_path / WEIGHTS_FILE).write_bytes(weights[:-8])
    refused("no baseline could be loaded")


# How well tokens match: the features against plain loops, and those of a frozen encoder against each text alone.


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


def test_texts_match_themselves_and_zeros_or_texts_without_tokens_nothing() -> None:
    text = random_states(4, 1, vocabulary=1000)
    of_ids, of_depth = [1, 1, 1, 1, 1, math.log(4), math.log(4), 0, 0], [1, 1, 0, 1, 1, 0, 1]
    np.testing.assert_allclose(alignment_features(text, text), of_ids + 3 * of_depth, atol=1e-6)
    zeros = TokenStates(text.ids_T, np.zeros_like(text.states_LTD), np.zeros_like(text.means_LD))
    np.testing.assert_array_equal(alignment_features(text, zeros)[9:], np.zeros(21))
    # Texts without any token match nothing.
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
    monkeypatch.setattr("attentune.baselines.frozen.has_fast_bf16", lambda device: True)
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
    assert len(made._alignments._places) == 6
    assert made.seconds > 0
    encoded.clear()
    np.testing.assert_array_equal(made.alignments(pairs_of(FIRSTS[::-1], SECONDS[::-1])), features_NF[::-1])
    assert encoded == []
    made.alignments(pairs_of(SECONDS, FIRSTS))  # the other order has other features
    assert len(made._alignments._places) == 9


def test_few_tokens_at_a_time_and_few_kept_vectors_give_the_same(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted_NF = encoder_of(tiny("bert")).alignments(pairs_of())
    monkeypatch.setattr("attentune.baselines.frozen._HELD_TOKENS", 40)
    limited, calls = encoder_of(tiny("bert")), []
    states = limited._token_states
    monkeypatch.setattr(limited, "_token_states", lambda features, rows: calls.append(1) or states(features, rows))
    np.testing.assert_allclose(limited.alignments(pairs_of()), wanted_NF, atol=0.05)
    assert len(calls) > 2
    # More texts than are kept have the same vectors.
    encoder = ModelConfig(name_or_path=str(tiny("bert")))
    expected_ND = FrozenEncoder(encoder, 32).vectors(TEXTS)
    monkeypatch.setattr("attentune.baselines.frozen.KEPT", 3)
    limited = FrozenEncoder(encoder, 32)
    for _ in range(2):
        for first in range(0, 5, 2):
            part = TEXTS[first : first + 2]
            np.testing.assert_allclose(limited.vectors(part), expected_ND[first : first + 2], atol=1e-5)
            assert len(limited._vectors._places) <= 3
    np.testing.assert_allclose(limited.vectors(TEXTS), expected_ND, atol=1e-5)


def test_texts_that_cannot_be_encoded_are_refused(tiny: Tiny) -> None:
    with pytest.raises(DataError, match="surrogate"):
        encoder_of(tiny("bert")).alignments(pairs_of(["a"], ["\ud800"]))


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


# Vectors and alignments of a frozen encoder are kept, but not without limit; loaded baselines share them.


TEXTS = ("a fine film", "a dull story", "we saw it in town", "a fine film", "so very bad")


def test_loaded_baselines_share_one_encoder(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(TEXTS, labels=[1, 0, 0, 1, 0])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made = make_baseline(
            "frozen-linear", encoder=ModelConfig(name_or_path=str(tiny("bert"))), max_length=32, seed=1
        )
        made.fit(rows, LabelSpace("classification", ("bad", "good"))).save(tmp_path / name)
    first, second = (load_run(tmp_path / name).baseline for name in ("one", "two"))
    assert first.frozen is second.frozen
    first.logits(rows)
    monkeypatch.setattr(second.frozen, "_batches", None)  # nothing is left to encode
    np.testing.assert_array_equal(second.logits(rows), first.logits(rows))


def test_rows_of_names_have_weights_and_are_of_single_texts_with_one_label() -> None:
    space = LabelSpace("classification", NAMES)
    rows = rows_of(["a", "b"], labels=[0, 3])
    weighted = with_class_names(replace(rows, weights=np.array([0.5, 2.0])), space)
    assert weighted.texts[:5] == ("a", "b", "card arrival", "card Arrival", "top up failed")
    assert weighted.labels.tolist() == [0, 3, 0, 1, 2, *range(4, 20)]
    assert weighted.weights.tolist() == [0.5, 2.0, *[1.0] * 19]
    assert len(set(weighted.ids)) == len(weighted) == 21
    for unchanged, of in (
        (rows, LabelSpace("classification", NAMES[:19])),
        (rows_of(["a"], ["b"], [0]), space),
        (replace(rows, targets=np.ones((2, 20)) / 20), space),
        (rows, LabelSpace("ordinal", NAMES)),
    ):
        assert with_class_names(unchanged, of) is unchanged


def test_many_classes_on_sparse_features_end_near_the_solution():
    """By a few passes of SAGA, and L-BFGS on the same numbers in a dense matrix."""
    draw, classes = np.random.default_rng(0), MANY_CLASSES
    labels = np.arange(80 * classes) % classes  # more rows than are reduced
    dense_ND = draw.random((len(labels), 60)) * (draw.random((len(labels), 60)) < 0.1)
    dense_ND[np.arange(len(labels)), labels] += draw.random(len(labels))
    space = LabelSpace("classification", tuple(f"c{k}" for k in range(classes)))
    options = {"weights": None, "strengths": (1.0,), "seed": 0, "standardise": False}
    fitted = [fit_linear(x, labels, space, **options)[0] for x in (dense_ND, *[sparse.csr_matrix(dense_ND)] * 2)]
    assert (fitted[1].weights_PD == fitted[2].weights_PD).all()
    assert np.abs(fitted[1].weights_PD - fitted[0].weights_PD).max() > 1e-9  # another solver
    exact_NC, near_NC = (model.logits(dense_ND, space)[np.arange(len(labels)), labels] for model in fitted[:2])
    assert near_NC.mean() == pytest.approx(exact_NC.mean(), abs=0.02)
