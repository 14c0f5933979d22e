"""The tabs of the page beside the text: the worst errors, predictions of a file, and the report."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attentune.app import html as html_parts
from attentune.app.files import ENDINGS
from attentune.app.report_page import ReportPage
from attentune.app.service import ExplanationService, handle_errors

KEEP_S = 3600
# The models answer one request at a time.
ONE_AT_A_TIME: dict[str, Any] = {"concurrency_id": "runs", "concurrency_limit": 1, "api_visibility": "private"}
_NO_FILE = "There is no file yet. Choose one, then try again."
_OPTIONAL = {"placeholder": "detected automatically"}


def add_errors_tab(gradio: Any, service: ExplanationService, tab: Any, script: str) -> Any:
    """Create the tab of the worst errors; return the component that is clicked."""
    table = gradio.HTML(js_on_load=script, apply_default_css=False, elem_id="errors")
    with gradio.Accordion("Errors of another file", open=False, elem_id="errors-of-file"):
        file = _file_field(gradio, service, "A labelled file", elem_id="labelled-file")
        with gradio.Row():
            columns = [
                gradio.Textbox(label="Text column", elem_id="labelled-text-column", **_OPTIONAL),
                gradio.Textbox(
                    label="Second text column", visible=service.is_pair, elem_id="labelled-pair-column", **_OPTIONAL
                ),
                gradio.Textbox(label="Label column", elem_id="label-column", **_OPTIONAL),
            ]
        button = gradio.Button("Show its worst errors", variant="primary", elem_id="show-errors")
    show_errors = handle_errors(str)(service.worst_errors)

    def of_validation(now: str) -> Any:
        return gradio.skip() if now else show_errors()

    def of_file(path: str | None, text: str, pair: str, label: str) -> str:
        if path is None:
            return html_parts.message(_NO_FILE)
        return show_errors(Path(path), text_column=text, pair_column=pair, label_column=label)

    tab.select(of_validation, table, table, **ONE_AT_A_TIME)
    button.click(of_file, [file, *columns], table, **ONE_AT_A_TIME)
    return table


def add_report_tab(gradio: Any, report: ReportPage, tab: Any) -> None:
    """Create the tab of the report, which is made when the tab is first opened."""
    frame = gradio.HTML(js_on_load=None, apply_default_css=False, elem_id="report")

    def show() -> str:
        return report.html()

    tab.select(show, None, frame, api_visibility="private", concurrency_limit=4)


def add_file_tab(gradio: Any, service: ExplanationService, uploads: Path) -> None:
    """Create the tab that predicts a file of texts."""
    shown = _file_fields(gradio, service)

    def predict(path: str | None, text_column: str, pair_column: str, with_words: bool) -> tuple[Any, ...]:
        if path is None:
            return html_parts.message(_NO_FILE), gradio.File(visible=False)
        _remove_old(uploads)
        folder = Path(tempfile.mkdtemp(prefix="made-", dir=uploads))
        html, files = handle_errors(lambda message: (message, []))(service.file)(
            Path(path), folder, text_column=text_column, pair_column=pair_column, with_words=with_words
        )
        return html, gradio.File(value=[str(file) for file in files], visible=bool(files))

    given = [shown.file, shown.text_column, shown.pair_column, shown.with_words]
    shown.button.click(predict, given, [shown.table, shown.made], **ONE_AT_A_TIME)


def _file_field(gradio: Any, service: ExplanationService, label: str, *, elem_id: str) -> Any:
    most = f"at most {service.limits.upload_bytes / 2**20:g} MB, {service.limits.rows:,} rows"
    kinds = list(ENDINGS)
    return gradio.File(
        label=f"{label} ({', '.join(kinds)}; {most})", file_types=kinds, type="filepath", elem_id=elem_id
    )


def _file_fields(gradio: Any, service: ExplanationService) -> SimpleNamespace:
    """Create the fields of the file tab, in their order on the page."""
    file = _file_field(gradio, service, "A file of texts", elem_id="file")
    with gradio.Row():
        text_column = gradio.Textbox(label="Text column", elem_id="text-column", **_OPTIONAL)
        pair_column = gradio.Textbox(
            label="Second text column", visible=service.is_pair, elem_id="pair-column", **_OPTIONAL
        )
        has_words = service.scores_words
        with_words = gradio.Checkbox(label="Add each word's score", visible=has_words, elem_id="with-words")
    return SimpleNamespace(
        file=file,
        text_column=text_column,
        pair_column=pair_column,
        with_words=with_words,
        button=gradio.Button("Predict", variant="primary", elem_id="predict-file"),
        table=gradio.HTML(js_on_load=None, apply_default_css=False, elem_id="file-table"),
        made=gradio.File(label="Predictions", file_count="multiple", interactive=False, visible=False, elem_id="made"),
    )


def _remove_old(uploads: Path) -> None:
    """Remove old predictions; downloads are copies, which Gradio keeps for as long."""
    for folder in uploads.glob("made-*"):
        if time.time() - folder.stat().st_mtime > KEEP_S:
            shutil.rmtree(folder, ignore_errors=True)
