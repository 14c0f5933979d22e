"""Builds label sources for tests: a tiny encoder with the real scorer, or a fast bag-of-words scorer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attentune.config import HeadConfig, LabelsConfig
from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import Features, encode_rows
from attentune.inference.scoring import make_accelerator
from attentune.token_labels.base import LabelGenerator, LabelSource, PredictionComparator, TrainingScorer
from attentune.token_labels.planner import build_generator
from helpers.tiny import CORPUS
from helpers.tiny_models import build, rows_of
from helpers.tiny_runs import KINDS, SPACES, spread

__all__ = ["KINDS"]

Tiny = Callable[..., Path]
# Besides sentences, a single word and a text without non-special tokens.
TEXTS = ("Yes", "", *(text.strip() for line in CORPUS.splitlines() for text in line.split(". ")))
_SPACES = SPACES | {"ordinal": LabelSpace("ordinal", SPACES["ordinal"].names)}


def tiny_source(
    folder: Path,
    kind: str = "classification",
    *,
    rows: int = 20,
    seed: int = 7,
    texts: Sequence[str] = TEXTS,
    gold: Sequence[float] | None = None,
    **model: Any,
) -> LabelSource:
    """Return a source of the first `rows` texts (or pairs of them), with an encoder that is correct on three of four.

    A fresh model gives nearly equal logits for all texts. Its classifier is shifted and scaled so that its predictions
    differ and masking changes some of them. `gold` replaces the labels that are generated here.
    """
    options = {"head": HeadConfig(kind="mean", combine="concat")} | model
    space, is_pair, bi_encoder = _SPACES[kind], kind in ("pair", "bi-encoder"), kind == "bi-encoder"
    if bi_encoder:
        options["pair_encoding"] = "bi-encoder"
    built, tokenizer = build(folder, label_space=space, is_pair=is_pair, **options)
    texts = texts[:rows]
    pairs = [texts[-1 - number] for number in range(len(texts))] if is_pair else None
    features = encode_rows(rows_of(texts, pairs), tokenizer, max_length=64, bi_encoder=bi_encoder)
    scorer = TrainingScorer(
        model=built,
        accelerator=make_accelerator(precision="fp32", use_cpu=True)[0],
        features=features,
        pad_token_id=tokenizer.pad_token_id,
        mask_token_id=tokenizer.mask_token_id,
    )
    spread(built, scorer.logits(np.arange(len(features))), mean=2.5 if kind == "regression" else 0.0)
    values = _gold(scorer.logits(np.arange(len(features))), space) if gold is None else np.asarray(gold)
    return LabelSource(features, values, PredictionComparator(space), scorer, tokenizer.mask_token_id, seed)


def _gold(logits_NC: np.ndarray, space: LabelSpace) -> np.ndarray:
    """Return the model's predictions as gold labels, with every fourth one made wrong."""
    is_wrong_N = np.arange(len(logits_NC)) % 4 == 3
    if space.task_type == "regression":
        return logits_NC[:, 0].astype(np.float64) + np.where(is_wrong_N, 1.0, 0.1)
    return (logits_NC.argmax(axis=1) + is_wrong_N) % space.num_labels


class RecordingScorer:
    """Wraps another scorer and records its calls: the rows, and the positions masked in each."""

    def __init__(self, scorer: Any) -> None:
        self._probe = scorer
        self.asked: list[tuple[list[int], list[list[int]] | None]] = []

    def logits(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> np.ndarray:
        places = None if masked is None else [[] if own is None else own.tolist() for own in masked]
        self.asked.append((rows.tolist(), places))
        return self._probe.logits(rows, masked)

    @property
    def plain(self) -> list[int]:
        return [row for rows, masked in self.asked if masked is None for row in rows]

    @property
    def masked(self) -> list[tuple[int, list[int]]]:
        return [pair for rows, masked in self.asked if masked is not None for pair in zip(rows, masked, strict=True)]


class BagOfWordsScorer:
    """A fast scorer of two classes: the logit of "good" is the sum of the values of the tokens that are not masked."""

    def __init__(self, features: Features, value_of: np.ndarray) -> None:
        self._features, self._value_of = features, value_of

    def logits(self, rows: np.ndarray, masked: Sequence[np.ndarray | None] | None = None) -> np.ndarray:
        logits_NC = np.zeros((len(rows), 2), dtype=np.float32)
        for number, row in enumerate(rows):
            values = self._value_of[self._features.ids[self._features.row(int(row))]].astype(np.float32)
            if masked is not None and masked[number] is not None:
                values[masked[number]] = 0.0
            logits_NC[number, 1] = values.sum()
        return logits_NC


def features_of(*rows: str) -> Features:
    """Build one row per string, one token per character: 's' is a special token; token ids count from 0."""
    special = np.array([mark == "s" for row in rows for mark in row], dtype=bool)
    starts = np.cumsum([0, *map(len, rows)])
    return Features(np.arange(len(special), dtype=np.int32), None, special, starts, np.diff(starts))


def bag_source(rows: int, *, length: int = 12, seed: int = 7, wrong_share: float = 0.2) -> LabelSource:
    """Build rows of random token values; about a quarter of the masks change the prediction.

    A share of the rows has the wrong gold label.
    """
    draw = np.random.default_rng(rows)
    features = features_of(*["s" + "o" * (length + int(more)) + "s" for more in draw.integers(0, 5, size=rows)])
    scorer = BagOfWordsScorer(features, np.where(features.special, 0.0, draw.normal(size=len(features.ids))))
    gold = scorer.logits(np.arange(rows)).argmax(axis=1)
    gold = np.where(draw.random(rows) < wrong_share, 1 - gold, gold)
    return LabelSource(features, gold, PredictionComparator(_SPACES["classification"]), scorer, -1, seed)


def bag_answer(source: LabelSource, row: int, places: list[int] | None = None) -> Tensor:
    masked = None if places is None else [np.array(places, dtype=np.int64)]
    return torch.from_numpy(source.scorer.logits(np.array([row]), masked)[0])


def generator(name: str, source: LabelSource, **settings: Any) -> LabelGenerator:
    return build_generator(LabelsConfig(name, **settings), source)


def labels_of(name: str, source: LabelSource, *, epoch: int = 1, **settings: Any) -> np.ndarray:
    labels = generator(name, source, **settings).plan(epoch).token_labels
    assert labels is not None, "no token was labelled"
    return labels.values


def watched(source: LabelSource) -> tuple[LabelSource, RecordingScorer]:
    scorer = RecordingScorer(source.scorer)
    return replace(source, scorer=scorer), scorer
