"""What explanations cost: calls of the model, forward and back, and wall time, by length of text and size of batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attentune.attribution.base import PREDICTED, Scorer, Settings
from attentune.attribution.hooks import PassCounter
from attentune.attribution.registry import METHODS
from attentune.data.dataset import TextRows
from attentune.data.tokenization import Features
from attentune.errors import DataError
from attentune.explain.explainer import Explainer
from attentune.explain.faithfulness.ordering import Progress
from attentune.inference.predictor import Predictor
from attentune.inference.scoring import score_rows
from attentune.models.attention import attention_by

LENGTHS = (16, 32, 64, 128, 256)
BATCHES = (1, 32)
# The prediction alone, without any scores: what all else is compared with.
PLAIN = "predict"

_REPEATS = 20

Clock = Callable[[], float]


@dataclass(frozen=True)
class CostLine:
    """What a method costs for a number of texts of one length.

    Attributes:
        method: a key of `METHODS`, or `PLAIN`.
        tokens: of each text, special ones included.
        texts: how many at once.
        forward_calls: calls of the model.
        backward_calls: backward passes.
        passes: texts in these, forward and back.
        repeats: how often it was timed; 0 where once would have taken too long.
        median_s: wall time of all texts.
        p95_s: its 95th percentile.
        times_plain: the median of its ratios to the prediction alone that was timed next to it.
    """

    method: str
    tokens: int
    texts: int
    forward_calls: int | None = None
    backward_calls: int | None = None
    passes: int | None = None
    repeats: int = 0
    median_s: float | None = None
    p95_s: float | None = None
    times_plain: float | None = None


def measure_cost(
    saved: Predictor,
    rows: TextRows,
    *,
    methods: Sequence[str],
    settings: Settings | None = None,
    lengths: Sequence[int] = LENGTHS,
    batches: Sequence[int] = BATCHES,
    precision: str | None = None,
    budget_s: float = 10.0,
    clock: Clock = time.perf_counter,
    progress: Progress | None = None,
) -> list[CostLine]:
    """Time methods on texts of set lengths, made of the words of `rows`.

    Methods take turns, so that what slows the machine down for a while slows all of them down.

    Args:
        saved: the run; lengths that it does not read are left out.
        rows: texts whose tokens are used.
        methods: keys of `METHODS`.
        settings: of the methods.
        lengths: tokens of a text.
        batches: texts at once.
        precision: another one than the run's.
        budget_s: about the most that one method may take at one length and batch; what would take longer even once,
            going by a single text or half the length, is left out.
        clock: what time is read from; `time.process_time`, with one thread, leaves a busy machine's waits out.
        progress: told what is under way.
    """
    lines: list[CostLine] = []
    with attention_by(saved.model):
        scorer = Explainer(saved, rows, precision=precision).scorer
        most = int(saved.model.config.max_seq_length)
        with scorer.evaluating():
            for count in batches:
                for tokens in (own for own in lengths if own <= most):
                    if progress is not None:
                        progress(f"timing {count} x {tokens} tokens")
                    part = replace(scorer, features=of_length(scorer.features, tokens, count))
                    fits = [name for name in methods if _forecast(lines, name, tokens, count) <= budget_s]
                    lines += _time(part, [PLAIN, *fits], count, tokens, settings or Settings(), budget_s, clock)
                    lines += [CostLine(name, tokens, count) for name in methods if name not in fits]
    return lines


def of_length(features: Features, tokens: int, count: int) -> Features:
    """So many rows of so many tokens: the special ones of the first row, and ordinary ones as they come.

    Of pairs the first text is filled, the second one is empty.

    Raises:
        DataError: there is no ordinary token.
    """
    pool = features.ids[~features.special]
    if not len(pool):
        raise DataError("got texts without a word, expected some to fill up texts with.")
    span = features.row(0)
    special = np.flatnonzero(features.special[span])
    fill = max(1, tokens - len(special))
    # Behind the first special token, which all encoders begin with.
    before, after = span.start + special[:1], span.start + special[1:]

    def rows_of(values: np.ndarray, own: np.ndarray) -> np.ndarray:
        row_parts = [(values[before], own[n * fill : (n + 1) * fill], values[after]) for n in range(count)]
        return np.concatenate([part for parts in row_parts for part in parts])

    many = count * fill
    width = fill + len(special)
    return Features(
        ids=rows_of(features.ids, np.resize(pool, many)),
        type_ids=None if features.type_ids is None else rows_of(features.type_ids, np.zeros(many, dtype=np.int8)),
        special=rows_of(features.special, np.zeros(many, dtype=bool)),
        starts=np.arange(count + 1, dtype=np.int64) * width,
        full_lengths=np.full(count, width, dtype=np.int64),
        second_starts=_second_starts(features, special, fill, count),
    )


def _second_starts(features: Features, special: np.ndarray, fill: int, count: int) -> np.ndarray | None:
    """Of pairs that are read apart: the second text's special tokens begin where they did, less the old words."""
    if features.second_starts is None:
        return None
    first = int(np.count_nonzero(special < features.second_starts[0]))
    return np.full(count, first + fill, dtype=np.int64)


def _forecast(lines: Sequence[CostLine], name: str, tokens: int, count: int) -> float:
    """About how long a method will take, from what is known of fewer texts or half the length; 0 where nothing is."""
    known = {(own.tokens, own.texts): own for own in lines if own.method == name}
    if METHODS[name].batched:
        return 0.0
    for key, factor in (((tokens, 1), count), ((tokens // 2, count), 2)):
        if key in known and key != (tokens, count):
            own = known[key].median_s
            return float("inf") if own is None else own * factor
    return 0.0


def _time(
    scorer: Scorer, names: Sequence[str], count: int, tokens: int, settings: Settings, budget_s: float, clock: Clock
) -> list[CostLine]:
    seconds: dict[str, list[float]] = {name: [] for name in names}
    counted: dict[str, CostLine] = {}
    for name in names:
        with PassCounter(scorer.model) as counter:
            # The first time warms caches up and is not timed, unless it is too dear to be done twice.
            seconds[name].append(_once(scorer, name, count, settings, clock))
        passes = counter.forward_texts + counter.backward_texts
        counted[name] = CostLine(name, tokens, count, counter.forward_calls, counter.backward_calls, passes)
    first = {name: own.pop() for name, own in seconds.items()}
    for _ in range(_REPEATS):
        for name in names:
            if sum(seconds[name]) + first[name] <= budget_s:
                seconds[name].append(_once(scorer, name, count, settings, clock))
    return [_line(counted[name], seconds[name] or [first[name]], seconds[PLAIN]) for name in names]


def _line(counted: CostLine, seconds: list[float], plain: list[float]) -> CostLine:
    pairs = list(zip(seconds, plain, strict=False)) or [(seconds[0], float("nan"))]
    return replace(
        counted,
        repeats=len(seconds),
        median_s=float(np.median(seconds)),
        p95_s=float(np.quantile(seconds, 0.95)),
        times_plain=float(np.median([own / other for own, other in pairs])),
    )


def _once(scorer: Scorer, name: str, count: int, settings: Settings, clock: Clock) -> float:
    rows = np.arange(count)
    ask: Callable[[], object]
    if name == PLAIN:

        def ask() -> object:
            return score_rows(
                scorer.model, scorer.features, pad_token_id=scorer.pad_token_id, accelerator=scorer.accelerator
            )

    else:
        method, wanted_B = METHODS[name], np.full(count, PREDICTED)

        def ask() -> object:
            parts = [rows] if method.batched else [rows[place : place + 1] for place in rows]
            return [method.score(scorer, part, wanted_B[part], settings) for part in parts]

    began = clock()
    ask()
    return clock() - began
