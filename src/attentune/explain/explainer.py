"""A saved run and rows, ready to be explained by any method."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attentune.attribution.base import Scorer, Settings, class_ids
from attentune.attribution.hooks import PassCounter
from attentune.attribution.registry import METHODS, Method, method_for
from attentune.data.batching import budget_order
from attentune.data.dataset import TaskData, TextRows
from attentune.data.tokenization import Features, Spans, encode_rows, encode_with_spans, token_spans
from attentune.explain.explanation import Explanation
from attentune.explain.words import Subword
from attentune.inference.predictor import Predictor
from attentune.inference.scoring import BATCH_TOKENS
from attentune.metrics.metrics import predictions_of, probabilities_of


@dataclass(frozen=True)
class Attribution:
    """What a method found for one row.

    Attributes:
        scores: (length,) float32, one number for each token that the model reads, 0 at special ones.
        target: the class that is explained; 0 for scores.
        logits: (C,) float32.
        passes: texts that were sent forward and back for it, see `Explanation.passes`.
        seconds: its share of the time.
    """

    scores: np.ndarray
    target: int
    logits: np.ndarray
    passes: int
    seconds: float


class Explainer:
    """Explains rows with a saved run, in the run's precision.

    Args:
        saved: the run. On a CPU its model is left with the attention that `predict` leaves it with.
        rows: the rows.
        precision: another one than the run's.
        with_spans: where tokens stand in their texts will be asked of all rows: find it out on the way.

    Attributes:
        scorer: the model and the rows' tokens.
        batch_size: rows in a batch of the run's predictions.
    """

    def __init__(
        self, saved: Predictor, rows: TextRows, *, precision: str | None = None, with_spans: bool = False
    ) -> None:
        self._saved, self._rows = saved, rows
        self._spans: list[Spans] | None = None
        data = TaskData("input", saved.label_space, (), {"input": rows})
        encode = self._encode_with_spans if with_spans else encode_rows
        evaluator = saved.evaluator(data, encode=encode, precision=precision)
        self.batch_size = evaluator.batch_size
        self.scorer = Scorer(
            model=saved.model,
            accelerator=evaluator.accelerator,
            features=evaluator.features["input"],
            label_space=saved.label_space,
            pad_token_id=saved.tokenizer.pad_token_id,
            mask_token_id=saved.tokenizer.mask_token_id,
        )

    def _encode_with_spans(self, *rows_and_tokenizer: Any, **lengths: Any) -> Features:
        features, self._spans = encode_with_spans(*rows_and_tokenizer, **lengths)
        return features

    def attributions(
        self,
        name: str,
        *,
        target: str | Sequence[str] | None = None,
        settings: Settings | None = None,
        alone: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[Attribution]:
        """What a method finds for each row.

        Args:
            name: a key of `METHODS`.
            target: the class to explain, for all rows or for each; not given: the predicted one.
            settings: of the method.
            alone: each row is a batch of its own, without padding.
            progress: called with the number of rows done in each batch.

        Raises:
            ConfigError: the method does not exist, or not work on this run; or there is no such class.
        """
        method, count = method_for(name, self.scorer.model), len(self._rows)
        wanted_N = class_ids(target, self.scorer.label_space, count)
        found: dict[int, Attribution] = {}
        with self.scorer.evaluating(), PassCounter(self.scorer.model) as counter:
            for places in self._batches(method, alone):
                began = time.perf_counter()
                scored = method.score(self.scorer, places, wanted_N[places], settings or Settings())
                seconds = (time.perf_counter() - began) / len(places)
                # Rows of one batch have each the same number of copies.
                passes = counter.take() // len(places)
                target_B = self.scorer.targets(scored.logits_BC, wanted_N[places])
                for number, place in enumerate(places.tolist()):
                    found[place] = Attribution(
                        scored.scores[number], int(target_B[number]), scored.logits_BC[number], passes, seconds
                    )
                if progress is not None:
                    progress(len(places))
        return [found[place] for place in range(count)]

    def _batches(self, method: Method, alone: bool) -> list[np.ndarray]:
        if method.batched and not alone:
            return budget_order(self.scorer.features.padded_lengths, BATCH_TOKENS)
        return [np.array([place]) for place in range(len(self._rows))]

    def explanations(self, name: str, unit: str, attributions: Sequence[Attribution]) -> list[Explanation]:
        """What a method found, laid on the texts.

        Args:
            name: the method's.
            unit: "word" or "token".
            attributions: of each row.
        """
        return [self._explanation(row, name, unit, found) for row, found in enumerate(attributions)]

    def pieces(self, row: int, scores: np.ndarray) -> tuple[Subword, ...]:
        """The tokens of a row, without the special ones, with their places and these scores."""
        texts = {"text": self._rows.texts[row], "pair": self._rows.pairs[row] if self._rows.pairs else ""}
        return tuple(
            Subword(texts[span[0]][span[1] : span[2]], span[1], span[2], score, span[0])
            for span, score in zip(self.spans(row), scores.tolist(), strict=True)
            if span is not None
        )

    def spans(self, row: int) -> Spans:
        """Where each token of a row stands in its text; see `data.features.token_spans`."""
        if self._spans is None:
            model = self.scorer.model.config
            lengths = {"max_length": model.max_seq_length, "apart": model.is_bi_encoder}
            self._spans = token_spans(self._rows, self._saved.tokenizer, **lengths)
        return self._spans[row]

    def _explanation(self, row: int, name: str, unit: str, found: Attribution) -> Explanation:
        label, probability, prediction = self.said(found.logits, found.target)
        return Explanation(
            text=self._rows.texts[row],
            pair=self._rows.pairs[row] if self._rows.pairs else None,
            method=name,
            label=label,
            probability=probability,
            prediction=prediction,
            signed=METHODS[name].signed,
            passes=found.passes,
            seconds=found.seconds,
            unit=unit,
            pieces=self.pieces(row, found.scores),
        )

    def said(self, logits_C: np.ndarray, target: int) -> tuple[str | float, float | None, str | float]:
        """The explained class, its probability, and the predicted class; for regression the score, None, the score."""
        space = self.scorer.label_space
        predicted = predictions_of(logits_C[None], space)[0]
        if space.task_type == "regression":
            score = round(float(predicted), 6)
            return score, None, score
        probability = float(probabilities_of(logits_C[None], space)[0, target])
        return space.names[target], probability, space.text_of(predicted)
