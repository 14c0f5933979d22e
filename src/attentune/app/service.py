"""Turn a user's text or file into HTML. Independent of the server and of Gradio."""

from __future__ import annotations

import functools
import re
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

from attentune.app import html as html_parts
from attentune.app.files import predict_file
from attentune.app.limits import RequestLimits
from attentune.attribution.base import Settings
from attentune.attribution.registry import METHODS
from attentune.data.dataset import TextRows
from attentune.errors import AttentuneError, ConfigError
from attentune.explain.answers import answer, answer_masked, explained_answer, words_read
from attentune.explain.explainer import check_method, default_method, unchanged_attention
from attentune.explain.heads import head_attention
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.serving.limits import LIME_SAMPLES

PREDICTED = "the predicted one"
_BUG = (
    "Internal error: this is a bug in Attentune, not in your input. The terminal that runs this page shows the"
    " traceback."
)

P = ParamSpec("P")


@dataclass(frozen=True)
class ExplanationResult:
    """The result of one request for an explanation.

    Attributes:
        html: one panel per run, or a message.
        words: the number of words that can be masked; 0 with a message.
    """

    html: str
    words: int = 0


class ExplanationService:
    """Answers requests, one at a time, with one or two saved runs.

    Args:
        runs: the runs with their names; their tasks may differ, but all must read single texts or all pairs.
        limits: limits on the size of requests.
        precision: overrides the precision of the runs.

    Raises:
        ConfigError: one run reads pairs and another single texts.
    """

    def __init__(
        self,
        runs: Sequence[tuple[str, Predictor]],
        *,
        limits: RequestLimits | None = None,
        precision: str | None = None,
    ) -> None:
        self.runs, self.limits, self._precision = tuple(runs), limits or RequestLimits(), precision
        # Explaining temporarily changes a model (its attention and hooks), so requests run one at a time.
        self._lock = threading.Lock()
        kinds = {name: saved.is_pair for name, saved in self.runs}
        if len(set(kinds.values())) > 1:
            reasons = ", ".join(
                f"{name} reads {'pairs' if is_pair else 'single texts'}" for name, is_pair in kinds.items()
            )
            raise ConfigError(f"--compare_with: {reasons}; expected both to read pairs, or both single texts.")

    @property
    def is_pair(self) -> bool:
        """Whether the runs read pairs."""
        return self.runs[0][1].is_pair

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of all runs, starting with those of the first run; empty for regression."""
        return tuple(dict.fromkeys(name for _, saved in self.runs for name in saved.label_space.names))

    @property
    def methods(self) -> tuple[str, ...]:
        """The explanation methods that at least one of the runs supports."""
        return tuple(name for name in METHODS if any(_works(name, saved) for _, saved in self.runs))

    @property
    def default_method(self) -> str:
        """The method that is shown first: ssa if a run supports it, else leave-one-out."""
        return "ssa" if "ssa" in self.methods else default_method(self.runs[0][1])

    @property
    def layers(self) -> int:
        """The largest number of encoder layers of the runs; 0 if none of them is one model."""
        models = [saved.model for _, saved in self.runs if isinstance(saved, ModelPredictor)]
        return max((model.encoder.config.num_hidden_layers for model in models), default=0)

    @property
    def scores_tokens(self) -> bool:
        """Whether at least one run has a token gate."""
        return any(_scores_tokens(saved) for _, saved in self.runs)

    def explain(
        self, text: str, pair: str = "", method: str | None = None, unit: str = "word", target: str = PREDICTED
    ) -> ExplanationResult:
        """Predict and explain a text with each run, side by side."""
        rows = self._rows(text, pair)
        method = method or self.default_method
        settings = Settings(samples=LIME_SAMPLES if method == "lime" else None)
        target_class = None if target == PREDICTED or not self.classes else target

        def render(saved: Predictor) -> str:
            try:
                prediction, explanation = explained_answer(
                    saved,
                    rows,
                    method=method,
                    target=target_class if saved.label_space.names else None,
                    unit=unit,
                    settings=settings,
                    precision=self._precision,
                )
            except ConfigError as error:  # this run does not support the method or class
                return html_parts.prediction(answer(saved, rows, precision=self._precision)) + html_parts.trouble(
                    str(error)
                )
            return html_parts.prediction(prediction) + html_parts.explanation(explanation)

        with self._lock:
            html = self._side_by_side(render)
            return ExplanationResult(html, len(words_read(self.runs[0][1], rows, precision=self._precision)))

    def mask(self, text: str, pair: str, number: int) -> tuple[str, str]:
        """Predict a text with one word masked, for each run.

        Args:
            text: the text.
            pair: the second text, "" for single texts.
            number: the number of the word, from 1 in the order of the text; 0 masks none.

        Returns:
            The HTML, and the label of the slider, which names the word.
        """
        rows = self._rows(text, pair)
        with self._lock:
            words = words_read(self.runs[0][1], rows, precision=self._precision)
            number = max(0, min(int(number), len(words)))
            if not number:
                return "", html_parts.slider_label(len(words))
            word = words[number - 1]

            def render(saved: Predictor) -> str:
                masked = answer_masked(saved, rows, word, precision=self._precision)
                return html_parts.masked_word(masked, rows.texts[0], rows.pairs[0] if rows.pairs else None)

            return self._side_by_side(render), html_parts.slider_label(len(words), number, word.text)

    def heads(self, text: str, pair: str, layer: int, unit: str = "word") -> str:
        """Show the attention of the heads of a layer, for each run."""
        rows = self._rows(text, pair)

        def render(saved: Predictor) -> str:
            try:
                (attention,) = head_attention(saved, rows, layer=int(layer), unit=unit, precision=self._precision)
            except AttentuneError as error:  # the encoder has no such layer, or does not return its attention
                return html_parts.trouble(str(error))
            return html_parts.heads(attention)

        with self._lock:
            return self._side_by_side(render)

    def file(
        self,
        path: Path,
        folder: Path,
        *,
        text_column: str | None = None,
        pair_column: str | None = None,
        with_words: bool = False,
    ) -> tuple[str, list[Path]]:
        """Predict a file of texts; return a preview and the path of the CSV of each run, written into `folder`."""
        paths: list[Path] = []

        def render(saved: Predictor) -> str:
            predictions = predict_file(
                saved,
                path,
                limits=self.limits,
                text_column=(text_column or "").strip() or None,
                pair_column=(pair_column or "").strip() or None,
                with_words=with_words and _scores_tokens(saved),
                precision=self._precision,
            )
            paths.append(predictions.write(folder, self._file_name(len(paths))))
            return html_parts.preview(predictions.header, predictions.first, predictions.total)

        with self._lock:
            return self._side_by_side(render), paths

    def _file_name(self, number: int) -> str:
        if len(self.runs) == 1:
            return "predictions"
        return f"predictions-{number + 1}-{re.sub(r'[^A-Za-z0-9._-]', '_', self.runs[number][0])}"

    def _rows(self, text: str, pair: str) -> TextRows:
        second = (pair or "") if self.is_pair else None
        self.limits.check_text(text or "", second)
        return TextRows(("0",), (text or "",), None if second is None else (second,), None, "the text")

    def _side_by_side(self, render: Callable[[Predictor], str]) -> str:
        panels = []
        for name, saved in self.runs:
            with unchanged_attention(saved):
                panels.append((name, render(saved)))
        return html_parts.side_by_side(panels)


def _scores_tokens(saved: Predictor) -> bool:
    return isinstance(saved, ModelPredictor) and saved.model.token_gate is not None


def _works(method: str, saved: Predictor) -> bool:
    try:
        check_method(method, saved)
    except ConfigError:
        return False
    return True


def handle_errors(failed: Callable[[str], Any]) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Decorate a request handler: an error becomes `failed(message in HTML)`, never a traceback."""

    def wrap(function: Callable[P, Any]) -> Callable[P, Any]:
        @functools.wraps(function)
        def wrapped(*arguments: P.args, **options: P.kwargs) -> Any:
            try:
                return function(*arguments, **options)
            except AttentuneError as error:
                return failed(html_parts.message(str(error)))
            except Exception:
                traceback.print_exc(file=sys.stderr)
                return failed(html_parts.message(_BUG))

        return wrapped

    return wrap
