"""Measures the cost of explanations: forward and backward passes and wall time, by text length and batch size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attentune.data.dataset import TextRows
from attentune.data.tokenization import Features
from attentune.errors import DataError
from attentune.explain.explainer import Explainer
from attentune.explain.gradient import PassCounter
from attentune.explain.methods import METHODS
from attentune.explain.scorer import PREDICTED, Scorer, Settings
from attentune.inference.predictor import ModelPredictor
from attentune.inference.scoring import score_rows
from attentune.models.attention import attention_by
from attentune.nn.compiled.memory import kept_memory
from attentune_lab.faithfulness.measure import Progress

LENGTHS = (16, 32, 64, 128, 256)
BATCHES = (1, 32)
# The prediction without explanation, the reference of all comparisons.
PLAIN = "predict"

_REPEATS = 20


@dataclass(frozen=True)
class CostLine:
    """The cost of a method for a number of texts of one length."""

    method: str  # a key of `METHODS`, or `PLAIN`
    tokens: int  # length of each text, special tokens included
    texts: int  # number of texts
    forward_calls: int | None = None  # calls of the model
    backward_calls: int | None = None  # backward passes
    passes: int | None = None  # texts in these, forward plus backward
    repeats: int = 0  # number of timings; 0 if one would have exceeded the budget
    median_s: float | None = None  # median wall time for all texts, in seconds
    p95_s: float | None = None  # its 95th percentile
    times_plain: float | None = None  # median ratio to the time of the plain prediction measured next to it


def measure_cost(
    saved: ModelPredictor,
    rows: TextRows,
    *,
    methods: Sequence[str],
    settings: Settings | None = None,
    lengths: Sequence[int] = LENGTHS,
    batches: Sequence[int] = BATCHES,
    precision: str | None = None,
    budget_s: float = 10.0,
    progress: Progress | None = None,
) -> list[CostLine]:
    """Time methods on texts of given lengths, made of the tokens of `rows`.

    Methods alternate, so that a temporary slowdown of the machine affects all of them.
    """
    lines: list[CostLine] = []
    with attention_by(saved.model), kept_memory():
        scorer = Explainer(saved, rows, precision=precision).scorer
        most = int(saved.model.config.max_seq_length)
        with scorer.evaluating():
            for count in batches:
                for tokens in (length for length in lengths if length <= most):
                    if progress is not None:
                        progress(f"timing {count} x {tokens} tokens")
                    part = replace(scorer, features=of_length(scorer.features, tokens, count))
                    fits = [name for name in methods if _forecast(lines, name, tokens, count) <= budget_s]
                    lines += _time(part, [PLAIN, *fits], count, tokens, settings or Settings(), budget_s)
                    lines += [CostLine(name, tokens, count) for name in methods if name not in fits]
    return lines


def of_length(features: Features, tokens: int, count: int) -> Features:
    """Make `count` rows of `tokens` tokens: the special tokens of the first row, filled with non-special tokens.

    In pairs the first text is filled and the second one is empty.
    """
    pool = features.ids[~features.special]
    if not len(pool):
        raise DataError("got texts without words, expected at least one word to make texts of.")
    span = features.row(0)
    special = np.flatnonzero(features.special[span])
    fill = max(1, tokens - len(special))
    # After the first special token, with which all encoders begin.
    before, after = span.start + special[:1], span.start + special[1:]

    def rows_of(values: np.ndarray, inner: np.ndarray) -> np.ndarray:
        row_parts = [(values[before], inner[n * fill : (n + 1) * fill], values[after]) for n in range(count)]
        return np.concatenate([part for parts in row_parts for part in parts])

    second_starts = None
    if features.second_starts is not None:  # of a bi-encoder, whose second text is now only special tokens
        first = int(np.count_nonzero(special < features.second_starts[0]))
        second_starts = np.full(count, first + fill, dtype=np.int64)
    many = count * fill
    width = fill + len(special)
    return Features(
        ids=rows_of(features.ids, np.resize(pool, many)),
        type_ids=None if features.type_ids is None else rows_of(features.type_ids, np.zeros(many, dtype=np.int8)),
        special=rows_of(features.special, np.zeros(many, dtype=bool)),
        starts=np.arange(count + 1, dtype=np.int64) * width,
        full_lengths=np.full(count, width, dtype=np.int64),
        second_starts=second_starts,
    )


def _forecast(lines: Sequence[CostLine], name: str, tokens: int, count: int) -> float:
    """Estimate a method's time in seconds from fewer texts or half the length; 0 if nothing is known."""
    known = {(line.tokens, line.texts): line for line in lines if line.method == name}
    if METHODS[name].batched:
        return 0.0
    for key, factor in (((tokens, 1), count), ((tokens // 2, count), 2)):
        if key in known and key != (tokens, count):
            median_s = known[key].median_s
            return float("inf") if median_s is None else median_s * factor
    return 0.0


def _time(
    scorer: Scorer, names: Sequence[str], count: int, tokens: int, settings: Settings, budget_s: float
) -> list[CostLine]:
    seconds: dict[str, list[float]] = {name: [] for name in names}
    counted: dict[str, CostLine] = {}
    for name in names:
        with PassCounter(scorer.model) as counter:
            # The first run warms up caches and is not counted, unless a second one would exceed the budget.
            seconds[name].append(_once(scorer, name, count, settings))
        passes = counter.forward_texts + counter.backward_texts
        counted[name] = CostLine(name, tokens, count, counter.forward_calls, counter.backward_calls, passes)
    first = {name: samples.pop() for name, samples in seconds.items()}
    for _ in range(_REPEATS):
        for name in names:
            if sum(seconds[name]) + first[name] <= budget_s:
                seconds[name].append(_once(scorer, name, count, settings))
    lines = []
    for name in names:
        own = seconds[name] or [first[name]]
        ratios = [timed / plain_s for timed, plain_s in zip(own, seconds[PLAIN], strict=False)]
        median_s, p95_s = float(np.median(own)), float(np.quantile(own, 0.95))
        ratio = float(np.median(ratios or [np.nan]))
        lines.append(replace(counted[name], repeats=len(own), median_s=median_s, p95_s=p95_s, times_plain=ratio))
    return lines


def _once(scorer: Scorer, name: str, count: int, settings: Settings) -> float:
    rows, wanted_B = np.arange(count), np.full(count, PREDICTED)
    began = time.perf_counter()
    if name == PLAIN:
        score_rows(scorer.model, scorer.features, pad_token_id=scorer.pad_token_id, accelerator=scorer.accelerator)
    else:
        method = METHODS[name]
        for part in [rows] if method.batched else [rows[place : place + 1] for place in rows]:
            method.score(scorer, part, wanted_B[part], settings)
    return time.perf_counter() - began
