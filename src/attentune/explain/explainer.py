"""Applies attribution methods to rows with a saved run and maps the scores to the texts."""

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
    """A method's scores for one row.

    Attributes:
        scores: (length,) float32, one number per token, 0 at special tokens.
        target: id of the explained class; 0 for regression.
        logits: (C,) float32.
        passes: forward and backward passes, see `Explanation.passes`.
        seconds: this row's share of the batch's time.
    """

    scores: np.ndarray
    target: int
    logits: np.ndarray
    passes: int
    seconds: float


class Explainer:
    """Explains rows with a saved run.

    Args:
        saved: the run. On a CPU its model is left with the attention implementation that `predict` selects.
        rows: the rows.
        precision: overrides the run's precision.
        with_spans: compute the tokens' character spans of all rows during tokenisation; useful if all are needed.

    Attributes:
        scorer: the model and the rows' tokens.
        batch_size: rows per batch in the run's predictions.
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
        """Compute each row's scores by one method.

        Args:
            name: a key of `METHODS`.
            target: the class to explain, for all rows or one per row; by default the predicted class.
            settings: options of the method.
            alone: make each row a batch of its own, without padding.
            progress: called with the number of rows after each batch.

        Raises:
            ConfigError: the method does not exist or does not work on this run, or there is no such class.
        """
        method, count = method_for(name, self.scorer.model), len(self._rows)
        wanted_N = class_ids(target, self.scorer.label_space, count)
        by_row: dict[int, Attribution] = {}
        with self.scorer.evaluating(), PassCounter(self.scorer.model) as counter:
            for places in self._batches(method, alone):
                began = time.perf_counter()
                result = method.score(self.scorer, places, wanted_N[places], settings or Settings())
                seconds = (time.perf_counter() - began) / len(places)
                # All rows of a batch take the same number of passes.
                passes = counter.take() // len(places)
                target_B = self.scorer.targets(result.logits_BC, wanted_N[places])
                for number, place in enumerate(places.tolist()):
                    by_row[place] = Attribution(
                        result.scores[number], int(target_B[number]), result.logits_BC[number], passes, seconds
                    )
                if progress is not None:
                    progress(len(places))
        return [by_row[place] for place in range(count)]

    def _batches(self, method: Method, alone: bool) -> list[np.ndarray]:
        if method.batched and not alone:
            return budget_order(self.scorer.features.padded_lengths, BATCH_TOKENS)
        return [np.array([place]) for place in range(len(self._rows))]

    def explanations(self, name: str, unit: str, attributions: Sequence[Attribution]) -> list[Explanation]:
        """Map a method's scores to the texts.

        Args:
            name: the method.
            unit: "word" or "token".
            attributions: one per row, from `attributions`.
        """
        return [self._explanation(row, name, unit, attribution) for row, attribution in enumerate(attributions)]

    def pieces(self, row: int, scores: np.ndarray) -> tuple[Subword, ...]:
        """Return the subwords of a row, without special tokens, with their character spans and these scores."""
        texts = {"text": self._rows.texts[row], "pair": self._rows.pairs[row] if self._rows.pairs else ""}
        return tuple(
            Subword(texts[span[0]][span[1] : span[2]], span[1], span[2], score, span[0])
            for span, score in zip(self.spans(row), scores.tolist(), strict=True)
            if span is not None
        )

    def spans(self, row: int) -> Spans:
        """Return the character span of each token of a row; see `data.tokenization.token_spans`."""
        if self._spans is None:
            model = self.scorer.model.config
            lengths = {"max_length": model.max_seq_length, "bi_encoder": model.is_bi_encoder}
            self._spans = token_spans(self._rows, self._saved.tokenizer, **lengths)
        return self._spans[row]

    def _explanation(self, row: int, name: str, unit: str, attribution: Attribution) -> Explanation:
        label, probability, prediction = self.prediction_of(attribution.logits, attribution.target)
        return Explanation(
            text=self._rows.texts[row],
            pair=self._rows.pairs[row] if self._rows.pairs else None,
            method=name,
            label=label,
            probability=probability,
            prediction=prediction,
            signed=METHODS[name].signed,
            passes=attribution.passes,
            seconds=attribution.seconds,
            unit=unit,
            pieces=self.pieces(row, attribution.scores),
        )

    def prediction_of(self, logits_C: np.ndarray, target: int) -> tuple[str | float, float | None, str | float]:
        """Return the explained class, its probability and the predicted class; for regression score, None, score."""
        space = self.scorer.label_space
        predicted = predictions_of(logits_C[None], space)[0]
        if space.task_type == "regression":
            score = round(float(predicted), 6)
            return score, None, score
        probability = float(probabilities_of(logits_C[None], space)[0, target])
        return space.names[target], probability, space.text_of(predicted)
