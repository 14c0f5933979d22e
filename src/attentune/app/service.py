"""Turn a user's text or file into HTML. Independent of the server and of Gradio."""

from __future__ import annotations

import functools
import re
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from attentune.app import html as html_parts
from attentune.app.error_table import error_table, joined_error_table
from attentune.app.files import predict_file
from attentune.app.html import BUG, Panel
from attentune.app.limits import RequestLimits
from attentune.app.run_rows import (
    Example,
    WrongRows,
    example_of,
    have_same_rows,
    wrong_file_rows,
    wrong_validation_rows,
)
from attentune.app.words import Span
from attentune.attribution.base import Settings
from attentune.attribution.registry import METHODS
from attentune.data.dataset import TextRows
from attentune.errors import AttentuneError, ConfigError
from attentune.explain.agreement import agreement_of
from attentune.explain.answers import answer, answer_masked, explained_answer
from attentune.explain.explainer import check_method, default_method, free_methods, unchanged_attention
from attentune.explain.heads import head_attention
from attentune.explain.predict_explained import scores_words
from attentune.explain.words import Subword
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.serving.limits import LIME_SAMPLES

PREDICTED = "the predicted one"
P = ParamSpec("P")
T = TypeVar("T")


class ExplanationService:
    """Answers requests, one at a time, with one or two saved runs."""

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
        """The method that is used if none is chosen: that of the runs, or leave-one-out if theirs differ."""
        names = {default_method(saved) for _, saved in self.runs}
        return names.pop() if len(names) == 1 else "leave-one-out"

    @functools.cached_property
    def example(self) -> Example:
        """The text that the page begins with."""
        return example_of(self.runs[0][1])

    @property
    def layers(self) -> int:
        """The largest number of encoder layers of the runs; 0 if none of them is one model."""
        models = [saved.model for _, saved in self.runs if isinstance(saved, ModelPredictor)]
        return max((model.encoder.config.num_hidden_layers for model in models), default=0)

    @property
    def scores_words(self) -> bool:
        """Whether at least one run scores words in the pass that predicts."""
        return any(scores_words(saved) for _, saved in self.runs)

    def explain(
        self, text: str, pair: str = "", method: str | None = None, level: str = "word", target: str = PREDICTED
    ) -> str:
        """Predict and explain a text with each run, side by side.

        Beside the method stands one that costs no pass of its own, if the run has one (`ssa`), and how far they agree.
        """
        rows = self._rows(text, pair)
        method = method or self.default_method
        settings = Settings(samples=LIME_SAMPLES if method == "lime" else None)
        target_class = None if target == PREDICTED or not self.classes else target

        def panel(name: str, saved: Predictor) -> Panel:
            options: dict[str, Any] = {
                "target": target_class if saved.label_space.names else None,
                "level": level,
                "precision": self._precision,
            }
            try:
                found, first = explained_answer(saved, rows, method=method, settings=settings, **options)
                shown = Panel(name, found, (first,))
                free = free_methods(saved)
                if free and method not in free:
                    _, second = explained_answer(saved, rows, method=free[0], **options)
                    shown = replace(shown, explanations=(first, second), agreement=agreement_of(first, second))
            except ConfigError as error:  # this run does not support the method or class
                return Panel(name, answer(saved, rows, precision=self._precision), problem=str(error))
            return shown

        with self._lock:
            return html_parts.panels(self._each(panel), rows.texts[0], rows.pairs[0] if rows.pairs else None)

    def mask(self, text: str, pair: str, words: Sequence[Span]) -> list[str]:
        """Predict a text with words masked."""
        rows = self._rows(text, pair)
        sides = {"text": rows.texts[0], "pair": rows.pairs[0] if rows.pairs else ""}
        chosen = [Subword(sides[within][start:end], start, end, 0.0, within) for within, start, end in words]
        with self._lock:
            masked = self._each(lambda name, saved: answer_masked(saved, rows, chosen, precision=self._precision))
            classes = html_parts.shown_classes([one.before for one in masked])
            return [html_parts.masked_prediction(one, classes) for one in masked]

    def heads(self, text: str, pair: str, layer: int, level: str = "word") -> str:
        """Show the attention of the heads of a layer, for each run."""
        rows = self._rows(text, pair)

        def render(name: str, saved: Predictor) -> str:
            try:
                (attention,) = head_attention(saved, rows, layer=int(layer), level=level, precision=self._precision)
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

        def render(name: str, saved: Predictor) -> str:
            predictions = predict_file(
                saved,
                path,
                limits=self.limits,
                text_column=(text_column or "").strip() or None,
                pair_column=(pair_column or "").strip() or None,
                with_words=with_words and scores_words(saved),
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

    def worst_errors(
        self,
        path: Path | None = None,
        *,
        text_column: str | None = None,
        pair_column: str | None = None,
        label_column: str | None = None,
    ) -> str:
        """Show the rows that the runs get most wrong, of a labelled file or of their validation rows.

        Two runs that predict the same labels of the same rows have one table, others one each.
        """
        columns = {"text_column": text_column, "text_pair_column": pair_column, "label_column": label_column}
        given = {name: (value or "").strip() or None for name, value in columns.items()}

        def find(name: str, saved: Predictor) -> WrongRows | str:
            options: dict[str, Any] = {"limits": self.limits, "precision": self._precision}
            try:
                if path is None:
                    return wrong_validation_rows(saved, **options)
                return wrong_file_rows(saved, path, columns=given, **options)
            except AttentuneError as error:
                return html_parts.trouble(str(error))

        with self._lock:
            found = self._each(find)
        names = [name for name, _ in self.runs]
        wrong = [one for one in found if isinstance(one, WrongRows)]
        if len(wrong) == 2 and have_same_rows(*wrong):
            return html_parts.side_by_side([(" and ".join(names), joined_error_table(names, wrong))])
        tables = [error_table(one) if isinstance(one, WrongRows) else one for one in found]
        return html_parts.side_by_side(list(zip(names, tables, strict=True)))

    def _each(self, compute: Callable[[str, Predictor], T]) -> list[T]:
        results = []
        for name, saved in self.runs:
            with unchanged_attention(saved):
                results.append(compute(name, saved))
        return results

    def _side_by_side(self, render: Callable[[str, Predictor], str]) -> str:
        names = [name for name, _ in self.runs]
        return html_parts.side_by_side(list(zip(names, self._each(render), strict=True)))


def _works(method: str, saved: Predictor) -> bool:
    try:
        check_method(method, saved)
    except ConfigError:
        return False
    return True


def handle_errors(
    failed: Callable[[str], Any], *, as_html: bool = True
) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Decorate a request handler: an error becomes `failed(message)`, never a traceback."""
    render = html_parts.message if as_html else str

    def wrap(function: Callable[P, Any]) -> Callable[P, Any]:
        @functools.wraps(function)
        def wrapped(*arguments: P.args, **options: P.kwargs) -> Any:
            try:
                return function(*arguments, **options)
            except AttentuneError as error:
                return failed(render(str(error)))
            except Exception:
                traceback.print_exc(file=sys.stderr)
                return failed(render(BUG))

        return wrapped

    return wrap
