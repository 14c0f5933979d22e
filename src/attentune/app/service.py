"""What the page answers: from a visitor's text or file to pieces of HTML. Knows nothing of the server or Gradio."""

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
from attentune.app.files import predicted_file
from attentune.app.limits import RequestLimits
from attentune.attribution.base import Settings
from attentune.attribution.registry import METHODS, method_for
from attentune.data.dataset import TextRows
from attentune.errors import AttentuneError, ConfigError
from attentune.explain.answers import answer, answer_masked, explained_answer, words_read
from attentune.explain.heads import head_attention
from attentune.inference.predictor import Predictor
from attentune.models.attention import attention_by

# LIME's own 5,000 copies would keep everyone waiting.
LIME_SAMPLES = 1000
PREDICTED = "the predicted one"
_BUG = "Something went wrong here that is no fault of yours. The terminal that runs this page shows what it was."

P = ParamSpec("P")


@dataclass(frozen=True)
class Shown:
    """What one press of the button shows.

    Attributes:
        html: the boxes of the runs, or a message.
        words: how many words there are to mask; 0 beside a message.
    """

    html: str
    words: int = 0


class ExplanationService:
    """Answers visitors, one after the other, with one saved run or two.

    Args:
        runs: each with its name; what they predict may differ, but all read single texts or all read pairs.
        limits: how much is taken.
        precision: another one than the runs'.

    Raises:
        ConfigError: one reads pairs and another single texts.
    """

    def __init__(
        self,
        runs: Sequence[tuple[str, Predictor]],
        *,
        limits: RequestLimits | None = None,
        precision: str | None = None,
    ) -> None:
        self.runs, self.limits, self._precision = tuple(runs), limits or RequestLimits(), precision
        # Explaining changes a model for a moment (its attention, its hooks), so runs answer one visitor at a time.
        self._turn = threading.Lock()
        kinds = {name: saved.is_pair for name, saved in self.runs}
        if len(set(kinds.values())) > 1:
            reasons = ", ".join(
                f"{name} reads {'pairs' if is_pair else 'single texts'}" for name, is_pair in kinds.items()
            )
            raise ConfigError(f"--compare_with: {reasons}; expected two runs that read the same.")

    @property
    def is_pair(self) -> bool:
        """Whether the runs read pairs."""
        return self.runs[0][1].is_pair

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of all runs, those of the first first; none for scores."""
        return tuple(dict.fromkeys(name for _, saved in self.runs for name in saved.label_space.names))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that work on one of the runs at least."""
        return tuple(name for name in METHODS if any(_works(name, saved) for _, saved in self.runs))

    @property
    def default_method(self) -> str:
        """The cheapest one that says something about the model."""
        return "ssa" if "ssa" in self.methods else "gradient"

    @property
    def layers(self) -> int:
        """The number of encoder layers of the run that has the most."""
        return max(saved.model.encoder.config.num_hidden_layers for _, saved in self.runs)

    @property
    def scores_tokens(self) -> bool:
        """Whether one of the runs has a token gate."""
        return any(saved.model.token_gate is not None for _, saved in self.runs)

    def explain(
        self, text: str, pair: str = "", method: str | None = None, unit: str = "word", target: str = PREDICTED
    ) -> Shown:
        """The prediction and the scores of each run, side by side."""
        rows = self._rows(text, pair)
        method = method or self.default_method
        settings = Settings(samples=LIME_SAMPLES if method == "lime" else None)
        wanted = None if target == PREDICTED or not self.classes else target

        def box(saved: Predictor) -> str:
            try:
                said, why = explained_answer(
                    saved,
                    rows,
                    method=method,
                    target=wanted if saved.label_space.names else None,
                    unit=unit,
                    settings=settings,
                    precision=self._precision,
                )
            except ConfigError as error:  # a method or class that this run does not have
                return html_parts.prediction(answer(saved, rows, precision=self._precision)) + html_parts.trouble(
                    str(error)
                )
            return html_parts.prediction(said) + html_parts.explanation(why)

        with self._turn:
            html = self._beside(box)
            return Shown(html, len(words_read(self.runs[0][1], rows, precision=self._precision)))

    def mask(self, text: str, pair: str, number: int) -> tuple[str, str]:
        """What masking a word changes, for each run.

        Args:
            text: the text.
            pair: the second one, "" for single texts.
            number: the word's, from 1 in the order of the text; 0 masks none.

        Returns:
            The boxes, and which word it is in words.
        """
        rows = self._rows(text, pair)
        with self._turn:
            words = words_read(self.runs[0][1], rows, precision=self._precision)
            number = max(0, min(int(number), len(words)))
            if not number:
                return "", html_parts.slider_label(len(words))
            word = words[number - 1]

            def box(saved: Predictor) -> str:
                found = answer_masked(saved, rows, word, precision=self._precision)
                return html_parts.masked_word(found, rows.texts[0], rows.pairs[0] if rows.pairs else None)

            return self._beside(box), html_parts.slider_label(len(words), number, word.text)

    def heads(self, text: str, pair: str, layer: int, unit: str = "word") -> str:
        """What the heads of a layer attend to, for each run."""
        rows = self._rows(text, pair)

        def box(saved: Predictor) -> str:
            try:
                (found,) = head_attention(saved, rows, layer=int(layer), unit=unit, precision=self._precision)
            except AttentuneError as error:  # an encoder that has no such layer, or does not give its attention
                return html_parts.trouble(str(error))
            return html_parts.heads(found)

        with self._turn:
            return self._beside(box)

    def file(
        self,
        path: Path,
        folder: Path,
        *,
        text_column: str | None = None,
        pair_column: str | None = None,
        with_words: bool = False,
    ) -> tuple[str, list[Path]]:
        """The predictions for a file of texts: a preview, and a CSV a run, which are written into `folder`."""
        made: list[Path] = []

        def box(saved: Predictor) -> str:
            found = predicted_file(
                saved,
                path,
                limits=self.limits,
                text_column=(text_column or "").strip() or None,
                pair_column=(pair_column or "").strip() or None,
                with_words=with_words and saved.model.token_gate is not None,
                precision=self._precision,
            )
            made.append(found.write(folder, self._file_name(len(made))))
            return html_parts.preview(found.header, found.first, found.total)

        with self._turn:
            return self._beside(box), made

    def _file_name(self, number: int) -> str:
        if len(self.runs) == 1:
            return "predictions"
        return f"predictions-{number + 1}-{re.sub(r'[^A-Za-z0-9._-]', '_', self.runs[number][0])}"

    def _rows(self, text: str, pair: str) -> TextRows:
        second = (pair or "") if self.is_pair else None
        self.limits.check_text(text or "", second)
        return TextRows(("0",), (text or "",), None if second is None else (second,), None, "the text")

    def _beside(self, box: Callable[[Predictor], str]) -> str:
        made = []
        for name, saved in self.runs:
            with attention_by(saved.model):
                made.append((name, box(saved)))
        return html_parts.side_by_side(made)


def _works(method: str, saved: Predictor) -> bool:
    try:
        method_for(method, saved.model)
    except ConfigError:
        return False
    return True


def handle_errors(failed: Callable[[str], Any]) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Wraps what answers a visitor: what goes wrong becomes `failed(message in HTML)`, never a traceback."""

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
