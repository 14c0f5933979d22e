"""Applies attribution methods to rows with a saved run and maps the scores to the texts.

`explainer_for` returns the explainer of a run: `Explainer` for a model, `WordExplainer` for baselines and ensembles.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.ignored_words import shortened
from attentune.data.tokenization import Spans, budget_order, encode_with_spans
from attentune.explain.explanation import Explanation, Subword, overlap, word_spans
from attentune.explain.fast_shap import LEAST_EXPLAINED, explains_enough
from attentune.explain.gradient import PassCounter
from attentune.explain.methods import (
    METHODS,
    Method,
    check_contrast,
    method_for,
    method_without_model,
    score_unit,
)
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
from attentune.inference.predictor import ModelPredictor, Predictor, Progress
from attentune.inference.scoring import BATCH_TOKENS
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.models.cpu_layers import attention_by
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
    left_out = "masked"  # what is done to a word that is left out

    def __init__(self, saved: Predictor, rows: TextRows) -> None:
        self.saved, self.given, self._space = saved, rows, saved.label_space
        self.rows = saved.as_read(TaskData("input", self._space, (), {"input": rows})).splits["input"]

    @abstractmethod
    def spans(self, row: int) -> Sequence[tuple[str, int, int] | None]:
        """Return the text ("text" or "pair") and character span of each token of a row; None for special tokens."""

    def pieces(self, row: int, scores: np.ndarray) -> tuple[Subword, ...]:
        """Return the tokens of a row, without special tokens, with their character spans and these scores."""
        texts = {"text": self.rows.texts[row], "pair": self.rows.pairs[row] if self.rows.pairs else ""}
        return tuple(
            Subword(texts[span[0]][span[1] : span[2]], span[1], span[2], score, span[0])
            for span, score in zip(self.spans(row), scores.tolist(), strict=True)
            if span is not None
        )

    def ignored_words(self, row: int) -> tuple[str, ...]:
        """Return the words of a row that the run does not read, see `data.ignored_words`."""
        words = tuple(self.saved.config.data.ignore_words or ())
        texts = (self.given.texts[row], self.given.pairs[row] if self.given.pairs else "")
        return tuple(dict.fromkeys(word for text in texts for word in shortened(text, words).ignored))

    @abstractmethod
    def batches(self, method: Method, alone: bool) -> list[np.ndarray]:
        """Return the rows that are explained together; with `alone` each row by itself, without padding."""

    @abstractmethod
    def counting(self) -> contextlib.AbstractContextManager[Callable[[], int]]:
        """Enter to get a function that returns the passes since its last call: texts that went through a model."""

    def attributions(
        self,
        name: str,
        *,
        target: str | Sequence[str] | None = None,
        settings: Settings | None = None,
        progress: Progress | None = None,
        alone: bool = False,
    ) -> list[Attribution]:
        """Compute each row's scores."""
        settings = settings or Settings()
        method, wanted_N = method_of(name, self.saved), class_ids(target, self._space, len(self.rows))
        if settings.contrast is not None:
            check_contrast(name)
        scorer = replace(self.scorer, contrast=contrast_id(settings.contrast, target, self._space))
        by_row: dict[int, Attribution] = {}
        with self.counting() as take:
            for places in self.batches(method, alone):
                began = time.perf_counter()
                result = method.score(scorer, places, wanted_N[places], settings)
                seconds = (time.perf_counter() - began) / len(places)
                # All rows of a batch take the same number of passes.
                passes = take() // len(places)
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
        found = [self._explanation(row, name, level, one, contrast) for row, one in enumerate(attributions)]
        with kept_memory():
            if name == "leave-one-out":
                scorer = replace(self.scorer, contrast=contrast_id(contrast, None, self._space))
                return [self._without_each(row, one, attributions[row], scorer) for row, one in enumerate(found)]
            return self._without_strongest(found, attributions) if METHODS[name].removes else found

    def _without_each(
        self, row: int, explanation: Explanation, attribution: Attribution, scorer: PredictionScorer
    ) -> Explanation:
        assert attribution.without is not None
        began, words, own = time.perf_counter(), explanation.words, self._tokens_of(row, explanation)
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
        masked = [self._tokens_of(row, found[row])[number] for row, number in strongest.items()]
        logits_NC = self.scorer.scores(np.array(list(strongest), dtype=np.int64), masked).logits_NC
        measured = list(found)
        for (row, number), logits_C in zip(strongest.items(), logits_NC, strict=True):
            without: list[float | None] = [None] * len(found[row].words)
            without[number] = self._outcome(logits_C, attributions[row].target)
            measured[row] = replace(found[row], without=tuple(without))
        return measured

    def _tokens_of(self, row: int, explanation: Explanation) -> list[np.ndarray]:
        """Return the positions of each word's tokens."""
        places = self.scorer.features.non_special_positions(row)
        return [
            np.array([place for place, piece in zip(places, explanation.pieces, strict=True) if overlap(piece, word)])
            for word in explanation.words
        ]

    def _outcome(self, logits_C: np.ndarray, target: int) -> float:
        """Return the probability of a class, or for regression the score."""
        label, probability, _ = self.prediction_of(logits_C, target)
        return float(label) if probability is None else probability

    def _explanation(
        self, row: int, name: str, level: str, attribution: Attribution, contrast: str | None
    ) -> Explanation:
        label, probability, prediction = self.prediction_of(attribution.logits, attribution.target)
        return Explanation(
            text=self.rows.texts[row],
            pair=self.rows.pairs[row] if self.rows.pairs else None,
            method=name,
            label=label,
            probability=probability,
            prediction=prediction,
            signed=METHODS[name].signed,
            passes=attribution.passes,
            seconds=attribution.seconds,
            level=level,
            unit=score_unit(name, self._space, str(label), contrast=contrast, level=level, how=self.left_out),
            pieces=self.pieces(row, attribution.scores),
            contrast=contrast,
            ignored=self.ignored_words(row),
        )

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
        features, self._spans = encode_with_spans(self.rows, saved.tokenizer, **lengths)
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
        with self.scorer.evaluating(), kept_memory(), PassCounter(self.scorer.model) as counter:
            yield counter.take

    def batches(self, method: Method, alone: bool) -> list[np.ndarray]:
        if method.batched and not alone:
            return budget_order(self.scorer.features.padded_lengths, BATCH_TOKENS)
        return [np.array([place]) for place in range(len(self.rows))]

    def spans(self, row: int) -> Spans:
        """Return the character span of each token of a row; see `data.tokenization.token_spans`."""
        return self._spans[row]


class WordExplainer(BaseExplainer):
    """Explains rows with a saved baseline or ensemble, by deleting words."""

    left_out = "deleted"

    def __init__(self, saved: Predictor, rows: TextRows, *, precision: str | None = None) -> None:
        super().__init__(saved, rows)
        rows = self.rows
        self._precision = precision
        self._runs = saved.num_runs if isinstance(saved, EnsemblePredictor) else 1
        self._predicted = 0
        self._uncounted = Counter(zip(rows.texts, rows.pairs or ("",) * len(rows), strict=True))
        spans = [self._words(row) for row in range(len(rows))]
        self.scorer: WordScorer = WordScorer(word_features(rows, spans), saved.label_space, self._predict, rows, spans)

    def _words(self, row: int) -> list[tuple[str, int, int]]:
        texts = {"text": self.rows.texts[row]} | ({"pair": self.rows.pairs[row]} if self.rows.pairs else {})
        return [(within, *span) for within, text in texts.items() for span in word_spans(text)]

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
        counted = self._predicted

        def take() -> int:
            nonlocal counted
            before, counted = counted, self._predicted
            return (self._predicted - before) * self._runs

        yield take

    def batches(self, method: Method, alone: bool) -> list[np.ndarray]:
        return [np.array([place]) for place in range(len(self.rows))]

    def spans(self, row: int) -> Sequence[tuple[str, int, int]]:
        """Return the text and character span of each word of a row."""
        return self.scorer.spans[row]


def explainer_for(saved: Predictor, rows: TextRows, *, precision: str | None = None) -> Explainer | WordExplainer:
    """Return the explainer of a run of any kind."""
    if isinstance(saved, ModelPredictor):
        return Explainer(saved, rows, precision=precision)
    return WordExplainer(saved, rows, precision=precision)


@contextlib.contextmanager
def unchanged_attention(saved: Predictor) -> Iterator[None]:
    """Restore the attention implementation of a run's model after the block, which explaining changes."""
    if isinstance(saved, ModelPredictor):
        with attention_by(saved.model):
            yield
    else:
        yield


def method_of(name: str, saved: Predictor) -> Method:
    """Return the method of this name, if it works on a run."""
    if isinstance(saved, ModelPredictor):
        return method_for(name, saved.model, has_head=saved.attribution_head is not None)
    return method_without_model(name, saved.kind)


def default_method(saved: Predictor) -> str:
    """Return the method that is used if none is named: fast-shap if the run has a head that explains enough, else
    leave-one-out, which works on every run; lab/docs/faithfulness.md measures which methods are how faithful.
    """
    return "fast-shap" if explains_enough(_share(saved)) else "leave-one-out"


def _share(saved: Predictor) -> float | None:
    """The share of the variance that the fitted head of a run explains; None without one."""
    head = saved.attribution_head if isinstance(saved, ModelPredictor) else None
    return None if head is None else head.explained_variance


def weak_head_note(saved: Predictor) -> str | None:
    """Say that the fitted head of a run is not used, if that is so."""
    share = _share(saved)
    if share is None or explains_enough(share):
        return None
    return (
        f"The head that was fitted to {saved.folder} explains {max(0.0, share):.0%} of how"
        f" predictions change when tokens are masked, less than {LEAST_EXPLAINED:.0%}, so leave-one-out is the default."
        f" Use the head with --method fast-shap, or fit it on more texts: attentune explain {saved.folder} --fit"
        " --input_file texts.csv"
    )


@dataclass(frozen=True)
class Answer:
    """A model's prediction for a text."""

    prediction: str | float  # the class, or for regression the score
    probabilities: dict[str, float]  # by class name; empty for regression


@dataclass(frozen=True)
class MaskedWords:
    """The predictions before and after masking words."""

    words: tuple[Subword, ...]  # the words with their spans in the text
    tokens: tuple[int, ...]  # for each word, how many of its tokens were masked; 0 if the text is truncated before it
    before: Answer  # the prediction for the unmasked text
    after: Answer  # the prediction with all of these tokens masked


def _answer(logits_C: np.ndarray, space: LabelSpace) -> Answer:
    predicted = predictions_of(logits_C[None], space)[0]
    if space.task_type == "regression":
        return Answer(float(predicted), {})
    shares = probabilities_of(logits_C[None], space)[0].tolist()
    return Answer(space.text_of(predicted), dict(zip(space.names, shares, strict=True)))


def _as_read(word: Subword, rows: TextRows, explainer: BaseExplainer) -> Subword:
    """Return a word with its span in the text that the run reads; empty if the word is left out of it."""
    text = rows.texts[0] if word.within == "text" or rows.pairs is None else rows.pairs[0]
    origins = shortened(text, tuple(explainer.saved.config.data.ignore_words or ())).origins
    own = [place for place, origin in enumerate(origins) if word.start <= origin < word.end]
    return word._replace(start=own[0], end=own[-1] + 1) if own else word._replace(start=0, end=0)


def answer_masked(
    saved: Predictor, rows: TextRows, words: Sequence[Subword], *, precision: str | None = None
) -> MaskedWords:
    """Predict the first row with words masked, and unmasked.

    All tokens that overlap with a word are masked.

    Source: SSA (Kou et al. 2020, figure 1).
    """
    explainer = explainer_for(saved, rows, precision=precision)
    read = [_as_read(word, rows, explainer) for word in words]
    length = int(explainer.scorer.features.lengths[0])
    ordinary = explainer.scorer.features.non_special_positions(0)
    pieces = explainer.pieces(0, np.zeros(length))
    is_masked_WT = np.array([[overlap(piece, word) for piece in pieces] for word in read], dtype=bool)
    is_masked_WT = is_masked_WT.reshape(len(words), len(pieces))
    masked = ordinary[is_masked_WT.any(axis=0)]
    logits_2C = explainer.scorer.scores(np.array([0, 0]), [None, masked]).logits_NC
    before, after = (_answer(logits_C, saved.label_space) for logits_C in logits_2C)
    return MaskedWords(tuple(words), tuple(is_masked_WT.sum(axis=1).tolist()), before, after)
