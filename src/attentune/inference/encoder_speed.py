"""How fast encoders predict on this machine."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from attentune.config import Config
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.inference.predictor import ModelPredictor, predict_rows
from attentune.models.build import build_model, load_tokenizer

# Texts of as many words of one syllable, which are a token each in most vocabularies.
WORDS = 30
_VOCABULARY = ("the", "man", "was", "at", "sea", "and", "saw", "a", "ship", "with", "two", "men", "on", "it")
_FEWEST, _MOST = 16, 256
# A timed pass takes about so long; the middle one of several counts.
_PASS_S, _PASSES = 1.0, 3
_MAX_LENGTH = 128


@dataclass(frozen=True)
class EncoderSpeed:
    """The speed of prediction, without loading."""

    texts_per_s: float  # texts a second
    tokens: float  # the mean number of tokens of a text
    precision: str  # the precision, as `attentune predict` chooses it
    device: str  # "cpu" or "cuda"
    threads: int  # the number of threads of PyTorch


def measure_encoder(name_or_path: str) -> EncoderSpeed:
    """Predict texts of `WORDS` words with a classifier of two classes on an encoder, as `attentune predict` does."""
    config = Config()
    settings = replace(config.model, name_or_path=name_or_path)
    space = LabelSpace("classification", ("no", "yes"))
    tokenizer = load_tokenizer(settings)
    model = build_model(settings, space, tokenizer, max_length=_MAX_LENGTH, is_pair=False, seed=0).eval()
    run = ModelPredictor(Path(name_or_path), config, space, model, tokenizer)
    _timed(run, _FEWEST)  # the first pass also compiles and allocates
    tried = _timed(run, _FEWEST)
    count = max(_FEWEST, min(_MOST, int(_FEWEST * _PASS_S / tried)))
    seconds = statistics.median(_timed(run, count) for _ in range(_PASSES))
    evaluator = run.evaluator(TaskData("speed", space, (), {"speed": _rows(_FEWEST)}))
    return EncoderSpeed(
        texts_per_s=count / seconds,
        tokens=float(evaluator.features["speed"].lengths.mean()),
        precision=evaluator.accelerator.mixed_precision,
        device=evaluator.accelerator.device.type,
        threads=torch.get_num_threads(),
    )


def _rows(count: int) -> TextRows:
    words = [_VOCABULARY[number * 5 % len(_VOCABULARY)] for number in range(count + WORDS)]
    texts = tuple(" ".join(words[number : number + WORDS]) for number in range(count))
    return TextRows(tuple(map(str, range(count))), texts, None, None, "speed")


def _timed(run: ModelPredictor, count: int) -> float:
    rows = _rows(count)
    start = time.perf_counter()
    predict_rows(run, rows)
    return time.perf_counter() - start
