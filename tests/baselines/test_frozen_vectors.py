"""Vectors and alignments of a frozen encoder are kept, but not without limit; loaded baselines share them."""

from pathlib import Path

import numpy as np
import pytest

from attentune.baselines import frozen
from attentune.baselines.frozen import FrozenEncoder
from attentune.baselines.registry import load_baseline, make_baseline
from attentune.config import ModelConfig
from attentune.data.dataset import LabelSpace
from helpers.tiny_models import rows_of

TEXTS = ("a fine film", "a dull story", "we saw it in town", "a fine film", "so very bad")


def test_more_texts_than_are_kept_have_the_same_vectors(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = ModelConfig(name_or_path=str(tiny("bert")))
    expected_ND = FrozenEncoder(encoder, 32).vectors(TEXTS)
    monkeypatch.setattr(frozen, "KEPT", 3)
    limited = FrozenEncoder(encoder, 32)
    for _ in range(2):
        for first in range(0, 5, 2):
            part = TEXTS[first : first + 2]
            np.testing.assert_allclose(limited.vectors(part), expected_ND[first : first + 2], atol=1e-5)
            assert len(limited._vectors) <= 3
    np.testing.assert_allclose(limited.vectors(TEXTS), expected_ND, atol=1e-5)


def test_loaded_baselines_share_one_encoder(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(TEXTS, labels=[1, 0, 0, 1, 0])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made = make_baseline(
            "frozen-linear", encoder=ModelConfig(name_or_path=str(tiny("bert"))), max_length=32, seed=1
        )
        made.fit(rows, LabelSpace("classification", ("bad", "good"))).save(tmp_path / name)
    first, second = (load_baseline(tmp_path / name) for name in ("one", "two"))
    assert first.frozen is second.frozen
    first.logits(rows)
    monkeypatch.setattr(second.frozen, "_batches", None)  # nothing is left to encode
    np.testing.assert_array_equal(second.logits(rows), first.logits(rows))
