"""What a saved run answers: predictions, explanations, masked words, files, and the validation rows it gets wrong."""

import contextlib
import csv
import functools
import io
import itertools
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.baselines.registry import BaselinePredictor
from attentune.config import DataConfig
from attentune.data.columns import extra_kind, read_extra_columns
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.files import read_table
from attentune.data.load import check_shown
from attentune.data.tables import Table, as_cell
from attentune.data.unlabelled import read_unlabelled
from attentune.errors import AttentuneError, ConfigError, DataError
from attentune.explain.explainer import answer_masked, default_method
from attentune.explain.explanation import Subword
from attentune.explain.methods import METHODS, method_of
from attentune.explain.scorer import Settings
from attentune.explain.texts import explain_rows, predict_explained, scores_words
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.evaluation import row_errors
from attentune.inference.predictions import predictions_csv
from attentune.inference.predictor import ModelPredictor, Predictor, predictions_of_input
from attentune.inference.streaming import predicted, run_fingerprint
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.metrics.rejection import IN_SCOPE_SCORE
from attentune.results import RESULT_FILE, RunResult
from attentune.runs.records import read_predictions
from attentune.serving.limits import LIME_SAMPLES
from attentune.training.calibration import CALIBRATION_FILE

# A text, its second text or None, and cells of the columns beside the text by name.
Row = tuple[str, str | None, Mapping[str, Any]]
# A word to mask: "text" or "pair", its first character, and the one after its last.
Span = tuple[str, int, int]

# Plain text only: compressed files may expand far beyond the size limit.
_ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
_SHOWN_ROWS, _CHUNK = 20, 256
_STOP_ROWS = 32  # long texts that a baseline on a frozen encoder reads in some seconds
_EXAMPLE_WORDS, _EXAMPLE_ROWS = (6, 30), 1000
_NEUTRAL = ("The first half was slow, but the ending was worth the wait.", "The ending was good.")


_ERROR = "The error is the probability of the prediction minus that of the label."
_ERRORS = {
    "regression": "The error is the distance of the two scores.",
    "multi_label": "The error is the largest one of a label's probability.",
}


class StoppedError(Exception):
    """Nobody waits for this explanation any more."""


class RunBackend:
    """A saved run of any kind."""

    def __init__(self, saved: Predictor, *, name: str, precision: str | None = None) -> None:
        self._saved, self._name, self._precision, self.is_pair = saved, name, precision, saved.is_pair
        self._id: str | None = None  # the start of the SHA-256 of weights and settings
        self._result: RunResult | None = None
        with contextlib.suppress(OSError):
            self._id = run_fingerprint(saved)[:16]
        with contextlib.suppress(AttentuneError, OSError, ValueError):
            self._result = RunResult.load(saved.folder / RESULT_FILE)

    def facts(self) -> dict[str, Any]:
        """Return the kind and task of the run, its labels, its scores and its methods of explanation."""
        model = self._saved.model if isinstance(self._saved, ModelPredictor) else None
        return {
            "run": self._name,
            "id": self._id,
            "written_by": None if self._result is None else self._result.versions.get("attentune"),
            "precision": self._precision or "fp32",
            "kind": self._saved.kind,
            "does": self._saved.job,
            "task_type": self._saved.label_space.task_type,
            "labels": list(self._saved.label_space.names),
            "pairs": self.is_pair,
            "columns": list(self._saved.config.data.extra_columns or ()),
            "score": _score(self._result),
            "max_length": None if model is None else model.config.max_seq_length,
            "explains_by": default_method(self._saved),
            "methods": [name for name in METHODS if _works(name, self._saved)],
            "scores_words": scores_words(self._saved),
        }

    def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Predict rows, with six digits as in the files of `attentune predict`."""
        data = TaskData("input", self._saved.label_space, (), {"input": self._rows(rows)})
        evaluator = self._saved.evaluator(data, precision=self._precision)
        return [_rounded(answer) for answer in predictions_of_input(evaluator)]

    def explain(
        self,
        row: Row,
        stop: threading.Event,
        *,
        method: str | None = None,
        target: str | None = None,
        level: str = "word",
        settings: Settings | None = None,
    ) -> dict[str, Any]:
        """Explain the prediction of a row."""
        method, settings = method or default_method(self._saved), settings or Settings()
        if settings.samples is None and method == "lime":
            settings = replace(settings, samples=LIME_SAMPLES)
        with _stoppable(self._saved, stop):
            (explanation,) = explain_rows(
                self._saved,
                self._rows([row]),
                methods=(method,),
                target=target,
                level=level,
                settings=settings,
                precision=self._precision,
            )[method]
        return explanation.to_dict()

    def mask(self, row: Row, words: Sequence[Span]) -> dict[str, Any]:
        """Predict a row without and with words masked, and say which of them the run does not read."""
        rows = self._rows([row])
        sides = {"text": row[0], "pair": row[1] or ""}
        chosen = [Subword(sides[within][start:end], start, end, 0.0, within) for within, start, end in words]
        before, after, counts = answer_masked(self._saved, rows, chosen, precision=self._precision)
        unread = [word.text for word, tokens in zip(chosen, counts, strict=True) if not tokens]
        return {"before": _rounded(before), "after": _rounded(after), "unread": unread}

    def read_file(self, content: bytes, name: str, columns: Mapping[str, str | None], most_rows: int) -> TextRows:
        """Read an uploaded file as `attentune predict` reads one; its labels are kept if the run knows them all.

        `columns` are names by setting of `DataConfig`; those that are not named are detected.
        """
        name = Path(name).name
        if Path(name).suffix.lower() not in _ENDINGS:
            raise DataError(f"{name}: unsupported file type, expected one of {', '.join(_ENDINGS)}.")
        given: dict[str, Any] = {setting: column or None for setting, column in columns.items()}
        config = self._saved.with_columns(DataConfig(**given))
        with tempfile.TemporaryDirectory(prefix="attentune-serve-") as folder:
            path = Path(folder) / f"upload{Path(name).suffix.lower()}"
            path.write_bytes(content)
            try:
                if config.id_column not in read_table(str(path)).names:
                    config = replace(config, id_column=None)  # files of texts to try out often have no ids
                rows = read_unlabelled(
                    str(path), label_space=self._saved.label_space, is_pair=self.is_pair, config=config
                )
            except AttentuneError as error:
                message = str(error).replace(str(path), name)
                message = re.sub(r" or give --no_header \([^)]*\)", "", message)  # a flag of the commands
                message = re.sub("--(text_column|text_pair_column|label_column)", r"\1", message)
                raise DataError(message) from None
        if len(rows) > most_rows:
            raise DataError(
                f"{name} has {len(rows):,} rows; this server accepts at most {most_rows:,}. Split it, start the server"
                f" with --max_rows {len(rows)}, or use attentune predict --input_file."
            )
        return rows

    def score(self, rows: TextRows, *, words: bool) -> tuple[np.ndarray, dict[str, Any]]:
        """Compute the (N, C) logits of rows and further columns, such as, if asked for, the scores of words."""
        explain = functools.partial(predict_explained, self._saved, precision=self._precision) if words else None
        return predicted(self._saved, rows, self._precision, explain)

    def file_answer(self, rows: TextRows, scored: Sequence[tuple[np.ndarray, dict[str, Any]]]) -> dict[str, Any]:
        """Return the predictions of a file as CSV, its first lines with their texts, and the rows that are wrong."""
        space = self._saved.label_space
        logits_NC = np.concatenate([logits for logits, _ in scored]) if scored else np.zeros((0, len(space.names) or 1))
        columns: dict[str, list[Any]] = {}
        for name, values in itertools.chain.from_iterable(part.items() for _, part in scored):
            columns.setdefault(name, []).extend(values)
        text = predictions_csv(rows, logits_NC, space, columns)
        header, *lines = itertools.islice(csv.reader(io.StringIO(text)), _SHOWN_ROWS + 1)
        texts = {"text": rows.texts} | ({"pair": rows.pairs} if rows.pairs else {})
        first = [[*(cells[number] for cells in texts.values()), *line] for number, line in enumerate(lines)]
        wrong = None
        if rows.labels is not None:
            source = f"{len(rows):,} rows of the file"
            wrong = self._wrong(source, rows, predictions_of(logits_NC, space), probabilities_of(logits_NC, space))
        return {"rows": len(rows), "columns": [*texts, *header], "first": first, "csv": text, "wrong": wrong}

    @functools.cached_property
    def _validation(self) -> tuple[str, TextRows]:
        """The first validation split; `Engine`'s data thread reads it, which takes as long as the file is large."""
        check_shown(self._saved.config.data, "The server")
        return next(iter(self._saved.data(None, ("validation",)).splits.items()))

    def example(self) -> dict[str, Any]:
        """Return the text that the page begins with, and where it is from.

        It is the first of 1,000 validation rows that has 6 to 30 words, both texts of a pair together: enough to
        explain, and explained in a moment. If there is none, or the rows cannot be read, it is a sentence of ours.
        """
        with contextlib.suppress(AttentuneError, OSError, ValueError):
            _, rows = self._validation
            for row in range(min(len(rows), _EXAMPLE_ROWS)):
                text, pair = rows.texts[row], rows.pairs[row] if rows.pairs is not None else ""
                if _EXAMPLE_WORDS[0] <= len(f"{text} {pair}".split()) <= _EXAMPLE_WORDS[1]:
                    label = ""
                    if rows.labels is not None:
                        label = f", labelled {self._saved.label_space.text_of(rows.labels[row])}"
                    about = f"An example: row {rows.ids[row]} of the validation rows{label}. Type your own."
                    return {"text": text, "pair": pair, "about": about}
        text, pair = _NEUTRAL
        return {"text": text, "pair": pair if self.is_pair else "", "about": "An example. Type your own."}

    def saved_errors(self, most_rows: int) -> tuple[TextRows, dict[str, Any] | None]:
        """Return the validation rows and those that the run gets most wrong by the predictions in its folder.

        If these are of other rows, the second is None, and `errors_of` needs the scores of the rows.
        """
        split, rows = self._validation
        space, source = self._saved.label_space, f"{len(rows):,} {split.replace('_', ' ')} rows"
        file = self._saved.folder / f"predictions_{split}.csv"
        if file.is_file() and not (self._saved.folder / CALIBRATION_FILE).is_file():  # the file is from before it
            kept = read_predictions(file)
            if kept.ids == rows.ids and kept.names == space.names:
                return rows, self._wrong(source, rows, kept.predictions_N, kept.probabilities_NC)
        if rows.labels is None:
            raise DataError(f"{rows.source}: has no labels to compare the predictions with.")
        if len(rows) > most_rows:
            raise DataError(f"There are {source}; this server predicts at most {most_rows:,} (--max_rows).")
        return rows, None

    def errors_of(self, scored: Sequence[tuple[np.ndarray, dict[str, Any]]]) -> dict[str, Any]:
        """Return the validation rows that the run gets most wrong by these scores."""
        split, rows = self._validation
        space, logits_NC = self._saved.label_space, np.concatenate([logits for logits, _ in scored])
        source = f"{len(rows):,} {split.replace('_', ' ')} rows"
        return self._wrong(source, rows, predictions_of(logits_NC, space), probabilities_of(logits_NC, space))

    def _wrong(self, source: str, rows: TextRows, predictions: np.ndarray, shares_NC: np.ndarray) -> dict[str, Any]:
        space = self._saved.label_space
        errors = row_errors(rows, predictions, shares_NC, space)
        shown = [
            {
                "text": rows.texts[error.row],
                "pair": rows.pairs[error.row] if rows.pairs else None,
                "label": error.label,
                "prediction": error.prediction,
                "error": round(error.size, 4),
            }
            for error in errors[:_SHOWN_ROWS]
        ]
        return {"source": source, "total": len(errors), "unit": _ERRORS.get(space.task_type, _ERROR), "rows": shown}

    def _rows(self, rows: Sequence[Row]) -> TextRows:
        ids = tuple(map(str, range(len(rows))))
        pairs = tuple(second or "" for _, second, _ in rows) if self.is_pair else None
        columns = self._saved.config.data.extra_columns or ()
        cells = {name: [as_cell(row[2].get(name)) for row in rows] for name, _ in map(extra_kind, columns)}
        extra, _ = read_extra_columns(Table("columns", tuple(cells), cells, len(rows)), columns)
        return TextRows(ids, tuple(text for text, *_ in rows), pairs, None, "texts", extra=extra)


def _rounded(answer: dict[str, Any]) -> dict[str, Any]:
    """Round to six digits, or four behind the point: the last ones depend on what else is in the batch."""
    if "probabilities" not in answer:
        return {**answer, "prediction": float(LabelSpace("regression").text_of(answer["prediction"]))}
    if IN_SCOPE_SCORE in answer:
        answer = {**answer, IN_SCOPE_SCORE: float(LabelSpace("regression").text_of(answer[IN_SCOPE_SCORE]))}
    return {**answer, "probabilities": {name: round(share, 6) for name, share in answer["probabilities"].items()}}


@contextlib.contextmanager
def _stoppable(saved: Predictor, stop: threading.Event) -> Iterator[None]:
    """Raise `StoppedError` once `stop` is set, before a pass of the run's models or a part of a baseline's rows."""

    def check(*given: Any) -> None:
        if stop.is_set():
            raise StoppedError

    def in_parts(logits: Callable[[TextRows], np.ndarray], rows: TextRows) -> np.ndarray:
        parts = []
        for part in chunks_of(rows, _STOP_ROWS):
            check()
            parts.append(logits(part))
        return np.concatenate(parts) if parts else logits(rows)

    check()
    runs: list[Predictor] = [saved]
    if isinstance(saved, EnsemblePredictor):
        runs = [saved.loaded.load(folder) for folder in saved.folders] if saved.loaded.keeps else []
    handles = [run.model.register_forward_pre_hook(check) for run in runs if isinstance(run, ModelPredictor)]
    baselines = [run.baseline for run in runs if isinstance(run, BaselinePredictor)]
    for baseline in baselines:
        vars(baseline)["logits"] = functools.partial(in_parts, baseline.logits)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for baseline in baselines:
            del vars(baseline)["logits"]


def _works(method: str, saved: Predictor) -> bool:
    try:
        method_of(method, saved)
    except ConfigError:
        return False
    return True


def _score(result: RunResult | None) -> str | None:
    """Return the first score on the validation rows."""
    for split, scores in ({} if result is None else result.scores).items():
        known = [(name, value) for name, value in scores.items() if value is not None]
        if split.startswith("validation") and known:
            return f"{known[0][0].replace('_', ' ')} {known[0][1]:.3f}"
    return None


def chunks_of(rows: TextRows, size: int | None = None) -> Iterator[TextRows]:
    """Divide rows into parts, of 256 by default, between which other requests are answered."""
    size = size or _CHUNK
    for start in range(0, len(rows), size):
        yield rows.take(range(start, min(start + size, len(rows))))
