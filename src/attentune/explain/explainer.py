"""Applies attribution methods to rows with a saved run and maps the scores to the texts.

`explainer_for` returns the explainer of a run: `Explainer` for a model, `WordExplainer` for baselines and ensembles.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attentune.data.dataset import TaskData, TextRows
from attentune.data.ignored_words import shortened
from attentune.data.tokenization import budget_order, encode_with_spans
from attentune.explain.explanation import Explanation, Subword, overlap, word_spans
from attentune.explain.fast_shap import LEAST_EXPLAINED
from attentune.explain.gradient import PassCounter
from attentune.explain.methods import METHODS, check_contrast, method_of, score_unit
from attentune.explain.scorer import (
    PredictionScorer,
    Scorer,
    Settings,
    WordScorer,
    class_ids,
    contrast_id,
    word_features,
)
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.predictor import ModelPredictor, Predictor, Progress, prediction_dicts
from attentune.inference.scoring import BATCH_TOKENS, evaluating
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.nn.compiled.memory import kept_memory


@dataclass(frozen=True)
class Attribution:
    """A method's scores for one row."""

    scores: np.ndarray  # (length,) float32, one number per token, 0 at special tokens
    target: int  # id of the explained class; 0 for regression
    logits: np.ndarray  # (C,) float32, or float64 for a score
    passes: int  # forward and backward passes, see `Explanation.passes`
    seconds: float  # this row's share of the batch's time
    without: np.ndarray | None = None  # of leave-one-out: (length, C) the logits without each token


class BaseExplainer(ABC):
    """Explains rows with a saved run of some kind."""

    scorer: PredictionScorer  # predicts the rows, and copies of them with masked tokens
    # The text ("text" or "pair") and character span of each token of each row; None for special tokens.
    spans: Sequence[Sequence[tuple[str, int, int] | None]]
    left_out = "masked"  # what is done to a word that is left out
    batched = True  # whether rows may share batches

    def __init__(self, saved: Predictor, rows: TextRows) -> None:
        self.saved, self.given, self._space = saved, rows, saved.label_space
        self.rows = saved.as_read(TaskData("input", self._space, (), {"input": rows})).splits["input"]

    def pieces(self, row: int, scores: np.ndarray) -> tuple[Subword, ...]:
        """Return the tokens of a row, without special tokens, with their character spans and these scores."""
        texts = {"text": self.rows.texts[row], "pair": self.rows.pairs[row] if self.rows.pairs else ""}
        return tuple(
            Subword(texts[span[0]][span[1] : span[2]], span[1], span[2], score, span[0])
            for span, score in zip(self.spans[row], scores.tolist(), strict=True)
            if span is not None
        )

    def ignored_words(self, row: int) -> tuple[str, ...]:
        """Return the words of a row that the run does not read, see `data.ignored_words`."""
        words = tuple(self.saved.config.data.ignore_words or ())
        texts = (self.given.texts[row], self.given.pairs[row] if self.given.pairs else "")
        return tuple(dict.fromkeys(word for text in texts for word in shortened(text, words).ignored))

    @abstractmethod
    def counting(self) -> contextlib.AbstractContextManager[Callable[[], int]]:
        """Enter to get a function that returns the passes so far: texts that went through a model."""

    def attributions(
        self,
        name: str,
        *,
        target: str | Sequence[str] | None = None,
        settings: Settings | None = None,
        progress: Progress | None = None,
        alone: bool = False,
    ) -> list[Attribution]:
        """Compute each row's scores; with `alone` each row by itself, without padding."""
        settings = settings or Settings()
        method, wanted_N = method_of(name, self.saved), class_ids(target, self._space, len(self.rows))
        if settings.contrast is not None:
            check_contrast(name)
        scorer = replace(self.scorer, contrast=contrast_id(settings.contrast, target, self._space))
        batches = [np.array([place]) for place in range(len(self.rows))]
        if self.batched and method.batched and not alone:
            batches = budget_order(scorer.features.padded_lengths, BATCH_TOKENS)
        by_row: dict[int, Attribution] = {}
        with self.counting() as passes_so_far:
            for places in batches:
                began, before = time.perf_counter(), passes_so_far()
                result = method.score(scorer, places, wanted_N[places], settings)
                seconds = (time.perf_counter() - began) / len(places)
                # All rows of a batch take the same number of passes.
                passes = (passes_so_far() - before) // len(places)
                target_B = scorer.targets(result.logits_BC, wanted_N[places])
                for number, place in enumerate(places.tolist()):
                    by_row[place] = Attribution(
                        result.scores[number],
                        int(target_B[number]),
                        result.logits_BC[number],
                        passes,
                        seconds,
                        result.without[number] if result.without else None,
                    )
                if progress is not None:
                    progress(len(places))
        return [by_row[place] for place in range(len(self.rows))]

    def explanations(
        self, name: str, level: str, attributions: Sequence[Attribution], *, contrast: str | None = None
    ) -> list[Explanation]:
        """Map a method's scores to the texts, and measure the prediction without words.

        Leave-one-out also leaves each word of several tokens out as a whole. Of other methods whose scores estimate
        what leaving words out does, the strongest word is left out, in one more pass that `passes` does not count.
        """
        found = []
        for row, one in enumerate(attributions):
            label, probability, prediction = self.prediction_of(one.logits, one.target)
            explanation = Explanation(
                text=self.rows.texts[row],
                pair=self.rows.pairs[row] if self.rows.pairs else None,
                method=name,
                label=label,
                probability=probability,
                prediction=prediction,
                signed=METHODS[name].signed,
                passes=one.passes,
                seconds=one.seconds,
                level=level,
                unit=score_unit(name, self._space, str(label), contrast=contrast, level=level, how=self.left_out),
                pieces=self.pieces(row, one.scores),
                contrast=contrast,
                ignored=self.ignored_words(row),
            )
            found.append(explanation)
        with kept_memory():
            if name == "leave-one-out":
                scorer = replace(self.scorer, contrast=contrast_id(contrast, None, self._space))
                return [self._without_each(row, one, attributions[row], scorer) for row, one in enumerate(found)]
            return self._without_strongest(found, attributions) if METHODS[name].removes else found

    def _without_each(
        self, row: int, explanation: Explanation, attribution: Attribution, scorer: PredictionScorer
    ) -> Explanation:
        assert attribution.without is not None
        began, words = time.perf_counter(), explanation.words
        own = self.tokens_of(row, explanation.pieces, words)
        scores = [word.score for word in words]
        # Some tokenizers have tokens without characters, which make no difference.
        after = [attribution.without[tokens[0]] if len(tokens) else attribution.logits for tokens in own]
        several = [number for number, tokens in enumerate(own) if len(tokens) > 1]
        if several:
            masked_NC = scorer.scores(np.full(len(several), row), [own[number] for number in several]).logits_NC
            before, *values = (
                float(scorer.value(torch.from_numpy(logits_C[None]), torch.tensor([attribution.target]))[0])
                for logits_C in (attribution.logits, *masked_NC)
            )
            for number, value, logits_C in zip(several, values, masked_NC, strict=True):
                scores[number], after[number] = before - value, logits_C
        return replace(
            explanation,
            word_scores=tuple(scores) if several else None,
            without=tuple(self._outcome(logits_C, attribution.target) for logits_C in after),
            passes=explanation.passes + len(several),
            seconds=explanation.seconds + (time.perf_counter() - began if several else 0.0),
        )

    def _without_strongest(
        self, found: Sequence[Explanation], attributions: Sequence[Attribution]
    ) -> list[Explanation]:
        strongest = {
            row: int(np.argmax([abs(word.score) for word in one.words])) for row, one in enumerate(found) if one.words
        }
        if not strongest:
            return list(found)
        masked = []
        for row, number in strongest.items():
            masked += self.tokens_of(row, found[row].pieces, [found[row].words[number]])
        logits_NC = self.scorer.scores(np.array(list(strongest), dtype=np.int64), masked).logits_NC
        measured = list(found)
        for (row, number), logits_C in zip(strongest.items(), logits_NC, strict=True):
            without: list[float | None] = [None] * len(found[row].words)
            without[number] = self._outcome(logits_C, attributions[row].target)
            measured[row] = replace(found[row], without=tuple(without))
        return measured

    def tokens_of(self, row: int, pieces: Sequence[Subword], words: Sequence[Subword]) -> list[np.ndarray]:
        """Return the positions of each word's tokens."""
        places = self.scorer.features.non_special_positions(row)
        return [places[[overlap(piece, word) for piece in pieces]] for word in words]

    def _outcome(self, logits_C: np.ndarray, target: int) -> float:
        """Return the probability of a class, or for regression the score."""
        label, probability, _ = self.prediction_of(logits_C, target)
        return float(label) if probability is None else probability

    def prediction_of(self, logits_C: np.ndarray, target: int) -> tuple[str | float, float | None, str | float]:
        """Return the explained class, its probability and the predicted class; for regression score, None, score."""
        space = self._space
        predicted = predictions_of(logits_C[None], space)[0]
        if space.task_type == "regression":
            score = round(float(predicted), 6)
            return score, None, score
        probability = float(probabilities_of(logits_C[None], space)[0, target])
        return space.names[target], probability, space.text_of(predicted)


class Explainer(BaseExplainer):
    """Explains rows with a saved model."""

    def __init__(self, saved: ModelPredictor, rows: TextRows, *, precision: str | None = None) -> None:
        super().__init__(saved, rows)
        config = saved.model.config
        lengths = {"max_length": config.max_seq_length, "bi_encoder": config.is_bi_encoder}
        features, self.spans = encode_with_spans(self.rows, saved.tokenizer, **lengths)
        saved.read.add(features.cut_lengths(config.max_seq_length))
        self.scorer: Scorer = Scorer(
            model=saved.model,
            accelerator=saved.accelerator(precision),
            features=features,
            label_space=saved.label_space,
            pad_token_id=saved.tokenizer.pad_token_id,
            mask_token_id=saved.tokenizer.mask_token_id,
            attribution_head=saved.attribution_head,
        )

    @contextlib.contextmanager
    def counting(self) -> Iterator[Callable[[], int]]:
        with evaluating(self.scorer.model), kept_memory(), PassCounter(self.scorer.model) as counter:
            yield lambda: counter.texts


class WordExplainer(BaseExplainer):
    """Explains rows with a saved baseline or ensemble, by deleting words."""

    left_out = "deleted"
    batched = False

    def __init__(self, saved: Predictor, rows: TextRows, *, precision: str | None = None) -> None:
        super().__init__(saved, rows)
        self._precision = precision
        self._predicted = 0
        texts = list(zip(self.rows.texts, self.rows.pairs or ("",) * len(rows), strict=True))
        self._uncounted = Counter(texts)
        spans = [
            [(within, *span) for within, text in zip(("text", "pair"), both, strict=True) for span in word_spans(text)]
            for both in texts
        ]
        self.spans = spans
        self.scorer = WordScorer(word_features(self.rows, spans), self._space, self._predict, self.rows, spans)

    def _predict(self, rows: TextRows) -> np.ndarray:
        self._predicted += len(rows)
        read, before = self.saved.read, replace(self.saved.read)
        evaluator = self.saved.evaluator(TaskData("rows", self._space, (), {"rows": rows}), precision=self._precision)
        logits_NC, cut_N = evaluator.predict("rows"), evaluator.cut_lengths("rows")
        # Each row counts as read once, the copies of it not at all.
        keys = zip(rows.texts, rows.pairs or ("",) * len(rows), strict=True)
        read.rows, read.cut = before.rows, before.cut
        read.add(np.repeat(cut_N, [self._uncounted.pop(key, 0) for key in keys]))
        return logits_NC

    @contextlib.contextmanager
    def counting(self) -> Iterator[Callable[[], int]]:
        runs = len(self.saved.folders) if isinstance(self.saved, EnsemblePredictor) else 1
        yield lambda: self._predicted * runs


def explainer_for(saved: Predictor, rows: TextRows, *, precision: str | None = None) -> Explainer | WordExplainer:
    """Return the explainer of a run of any kind."""
    if isinstance(saved, ModelPredictor):
        return Explainer(saved, rows, precision=precision)
    return WordExplainer(saved, rows, precision=precision)


def default_method(saved: Predictor) -> str:
    """Return the method that is used if none is named: fast-shap if the run has a head that explains enough, else
    leave-one-out, which works on every run; lab/docs/faithfulness.md measures which methods are how faithful.
    """
    head = saved.attribution_head if isinstance(saved, ModelPredictor) else None
    return "fast-shap" if head is not None and head.explained_variance >= LEAST_EXPLAINED else "leave-one-out"


def weak_head_note(saved: Predictor) -> str | None:
    """Say that the fitted head of a run is not used, if that is so."""
    head = saved.attribution_head if isinstance(saved, ModelPredictor) else None
    if head is None or head.explained_variance >= LEAST_EXPLAINED:
        return None
    return (
        f"The head that was fitted to {saved.folder} explains {max(0.0, head.explained_variance):.0%} of how"
        f" predictions change when tokens are masked, less than {LEAST_EXPLAINED:.0%}, so leave-one-out is the default."
        f" Use the head with --method fast-shap, or fit it on more texts: attentune explain {saved.folder} --fit"
        " --input_file texts.csv"
    )


def _as_read(word: Subword, rows: TextRows, explainer: BaseExplainer) -> Subword:
    """Return a word with its span in the text that the run reads; empty if the word is left out of it."""
    text = rows.texts[0] if word.within == "text" or rows.pairs is None else rows.pairs[0]
    origins = shortened(text, tuple(explainer.saved.config.data.ignore_words or ())).origins
    own = [place for place, origin in enumerate(origins) if word.start <= origin < word.end]
    return word._replace(start=own[0], end=own[-1] + 1) if own else word._replace(start=0, end=0)


def answer_masked(
    saved: Predictor, rows: TextRows, words: Sequence[Subword], *, precision: str | None = None
) -> tuple[dict[str, Any], dict[str, Any], list[int]]:
    """Predict the first row without and with words masked, as `prediction_dicts` says it; all their tokens are masked.

    Also return how many tokens each word has: 0 if the text is cut before it.

    Source: SSA (Kou et al. 2020, figure 1).
    """
    explainer = explainer_for(saved, rows, precision=precision)
    pieces = explainer.pieces(0, np.zeros(len(explainer.spans[0])))
    own = explainer.tokens_of(0, pieces, [_as_read(word, rows, explainer) for word in words])
    masked = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *own]))
    logits_2C = explainer.scorer.scores(np.array([0, 0]), [None, masked]).logits_NC
    before, after = prediction_dicts(logits_2C, saved.label_space)
    return before, after, [len(tokens) for tokens in own]
