"""The baselines: every task type, unusual rows, files, and the features of pairs against a plain loop."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.automl.portfolio import choose_members
from attentune.baselines import linear
from attentune.baselines.frozen import FrozenEncoder, OnFrozenEncoder
from attentune.baselines.linear import BASELINE_FILE, WEIGHTS_FILE, LinearModel, fit_linear
from attentune.baselines.registry import (
    BASELINES,
    OF_PAIRS,
    Majority,
    TfidfLinear,
    baselines_for,
    load_baseline,
    make_baseline,
)
from attentune.config import ModelConfig, load_config
from attentune.config.schema import BASELINE_NAMES
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.report.tables import _WORDS
from helpers.tiny_models import rows_of

TWO, THREE = (LabelSpace("classification", names) for names in (("bad", "good"), ("bad", "fair", "good")))
SPACES = {
    "classification": THREE,
    "ordinal": LabelSpace("ordinal", ("bad", "fair", "good"), "expected-value"),
    "regression": LabelSpace("regression"),
    "multi_label": LabelSpace("multi_label", ("funny", "sad", "long")),
}
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
    return rows_of(texts, pairs, labels_of(space, rows))


@pytest.fixture(scope="module")
def frozen(tiny: Callable[..., Path]) -> FrozenEncoder:
    return FrozenEncoder(ModelConfig(name_or_path=str(tiny("bert", pooler=False))), 32, use_cpu=True)


def made(name: str, frozen: FrozenEncoder) -> object:
    return make_baseline(name, encoder=frozen.encoder, max_length=32, seed=1, frozen=frozen)


CASES = [
    (name, kind, is_pair)
    for name in BASELINES
    for kind in SPACES
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
    loaded = load_baseline(tmp_path)
    assert type(loaded) is type(baseline)
    assert (loaded.label_space, loaded.is_pair, loaded.notes) == (space, is_pair, baseline.notes)
    np.testing.assert_array_equal(loaded.logits(new), logits_NC)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("kind", SPACES)
def test_few_and_odd_rows(name: str, kind: str, frozen: FrozenEncoder) -> None:
    space = SPACES[kind]
    texts = ("", "", "x", "one", "x", "", "y", "z")
    for count in (1, 2, 5, 8):
        labels = labels_of(space, count)
        for chosen in (labels, np.repeat(labels[:1], count, axis=0)):  # and with one label only
            rows = rows_of(texts[:count], texts[::-1][:count], chosen)
            logits_NC = made(name, frozen).fit(rows, space).logits(rows)
            assert np.isfinite(logits_NC).all()
            if kind != "multi_label" and len(np.unique(chosen)) == 1 and kind != "regression":
                assert (logits_NC.argmax(axis=1) == chosen).all()


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


def test_learns_what_a_word_says() -> None:
    texts = [f"{'wonderful' if number % 2 else 'terrible'} {WORDS[number % 5]}" for number in range(40)]
    rows = rows_of(texts, labels=[number % 2 for number in range(40)])
    assert (TfidfLinear().fit(rows, TWO).logits(rows).argmax(axis=1) == rows.labels).all()


def test_vectors_are_means_over_real_tokens_and_each_text_is_encoded_once(frozen: FrozenEncoder) -> None:
    from attentune.models.build import build_model, load_tokenizer

    texts = ["The film was good.", "no", "The film was good.", ""]
    vectors_ND = frozen.vectors(texts)
    tokenizer = load_tokenizer(frozen.encoder)
    model = build_model(frozen.encoder, SPACES["regression"], tokenizer, max_length=32, is_pair=False, seed=0).eval()
    for text, vector_D in zip(texts, vectors_ND, strict=True):
        ids = tokenizer([text], return_tensors="pt")
        expected_D = model.encoder(**ids).last_hidden_state[0].mean(dim=0).detach().numpy()
        np.testing.assert_allclose(vector_D, expected_D, atol=0.05)  # bf16 where the processor has it
    kept = len(frozen._vectors)
    np.testing.assert_array_equal(frozen.vectors(texts[::-1]), vectors_ND[::-1])
    assert len(frozen._vectors) == kept


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
        np.testing.assert_allclose(frozen.cosines(rows)[number, 0], expected[-1], atol=1e-5)


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
    model, note = fit_linear(features_ND, labels_of(space, 30), space, **options)
    monkeypatch.setattr(linear._Reduced, "of", classmethod(lambda cls, features: cls(features, features, None)))
    plain, plain_note = fit_linear(features_ND, labels_of(space, 30), space, **options)
    assert note == plain_note
    np.testing.assert_allclose(model.weights_PD, plain.weights_PD, atol=2e-3)
    np.testing.assert_allclose(model.logits(features_ND, space), plain.logits(features_ND, space), atol=2e-2)


def test_strength_is_the_one_of_least_cross_validated_loss() -> None:
    generator = np.random.default_rng(0)
    features_ND = generator.normal(size=(300, 3))
    options = {"weights": None, "seed": 0, "standardise": False, "strengths": (0.001, 100.0)}
    clear = (features_ND[:, 0] > 0).astype(np.int64)
    assert fit_linear(features_ND, clear, TWO, **options)[1].startswith("C = 100")
    assert fit_linear(features_ND, generator.integers(0, 2, 300), TWO, **options)[1].startswith("C = 0.001")


def test_classes_without_rows_have_a_small_probability() -> None:
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
    rows = rows_of(texts, pairs, drawn)
    logits_NC = made(name, frozen).fit(rows, space).logits(rows)
    assert logits_NC.shape == (len(texts), space.num_labels)
    assert np.isfinite(logits_NC).all()


def test_single_texts_have_no_baselines_of_pairs() -> None:
    for is_pair in (True, False):
        data = TaskData("own", TWO, ("accuracy",), {"train": rows_for(TWO, is_pair=is_pair)})
        assert baselines_for(data) == tuple(name for name in BASELINES if is_pair or name not in OF_PAIRS)


def test_each_baseline_is_listed_wherever_baselines_are() -> None:
    assert tuple(BASELINES) == BASELINE_NAMES
    chosen = choose_members(is_pair=True, task_type="classification", encoders=["embedded"])
    members = {member.name: member for member in chosen if member.is_baseline}
    for name, kind in BASELINES.items():
        assert load_config(preset=name).baseline == name
        assert members[name].rows == ("pair" if name in OF_PAIRS else None)
        assert (members[name].encoder is not None) == issubclass(kind, OnFrozenEncoder)
        assert name == "majority" or name in _WORDS


def test_refusals(frozen: FrozenEncoder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got 'tfidf-liner', expected one of majority, .*id you mean .*tfidf-linear"):
        made("tfidf-liner", frozen)
    with pytest.raises(DataError, match=r"texts: got no labelled rows, expected at least one to fit majority on"):
        Majority().fit(rows_of(["a"]), TWO)
    for name in OF_PAIRS:
        unloaded = FrozenEncoder(frozen.encoder, 32)
        with pytest.raises(
            ConfigError, match=rf"{name} compares the two texts of a pair, but the rows are single text"
        ):
            made(name, unloaded).fit(rows_of(["a"], labels=[0]), TWO)
        assert unloaded._loaded is None  # refused before an encoder is loaded
    fitted = Majority().fit(rows_of(["a"], labels=[0]), TWO)
    with pytest.raises(DataError, match=r"got pairs of texts, expected single texts"):
        fitted.logits(rows_of(["a"], ["b"]))
    with pytest.raises(CheckpointError, match=r"no baseline could be loaded.*Expected baseline\.json"):
        load_baseline(tmp_path)


def test_damaged_files_are_refused(frozen: FrozenEncoder, tmp_path: Path) -> None:
    made("frozen-linear", frozen).fit(rows_for(TWO, is_pair=False, rows=6), THREE).save(tmp_path)
    good = json.loads((tmp_path / BASELINE_FILE).read_text())
    weights = (tmp_path / WEIGHTS_FILE).read_bytes()

    def refused(match: str, **changes: object) -> None:
        (tmp_path / BASELINE_FILE).write_text(json.dumps({**good, **changes}))
        with pytest.raises(CheckpointError, match=match):
            load_baseline(tmp_path)

    refused("its format is 2", format=2)
    refused("holds the baseline 'other'", name="other")
    refused("do not fit", is_pair=True)
    refused("do not fit 2 labels", label_space={**good["label_space"], "names": ["a", "b"]})
    refused("another encoder", settings={**good["settings"], "encoder_fingerprint": "0"})
    refused("no baseline could be loaded", settings={})
    (tmp_path / WEIGHTS_FILE).write_bytes(weights[:-8])
    refused("no baseline could be loaded")
