"""The Gradio page: its fields, and the methods of the service that they call. Nothing is computed here."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attentune.app import html as html_parts
from attentune.app.files import ENDINGS
from attentune.app.service import PREDICTED, ExplanationResult, ExplanationService, handle_errors
from attentune.inference.predictor import ModelPredictor

_KEEP_S = 3600
_QUEUE_SIZE = 64
_SESSIONS = 100
_MOST_WORDS = 1_000_000
_CSS = f"""{html_parts.STYLE}
.gradio-container {{ width: 100%; max-width: 76rem !important; margin: 0 auto !important; }}
.att-title {{ font-size: 1.25rem; font-weight: 600; margin: 0; }}
.att-title + p {{ margin: .2rem 0 0; opacity: .75; font-size: .9rem; }}
.att-title, .att-title + p {{ color: var(--body-text-color); overflow-wrap: anywhere; }}
"""
# Gradio features that the page does not use: links, records of requests, other servers.
_DISABLED: dict[str, Any] = {
    "footer_links": [], "run_history": False, "show_error": False, "ssr_mode": False, "pwa": False,
    "mcp_server": False, "enable_monitoring": False,
}  # fmt: skip
# The models answer one request at a time.
_ONE_AT_A_TIME: dict[str, Any] = {"concurrency_id": "runs", "concurrency_limit": 1, "api_visibility": "private"}
_UNITS = [("words", "word"), ("pieces", "token")]


def gradio_app(service: ExplanationService, uploads: Path, *, title: str) -> Any:
    """Build the page as an ASGI application, without `app.security`.

    Args:
        service: the service that answers the requests.
        uploads: an empty folder for uploaded files and predictions.
        title: the title of the page.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    import gradio
    from fastapi import FastAPI

    with gradio.Blocks(title=title, analytics_enabled=False, delete_cache=(600, _KEEP_S)) as blocks:
        gradio.HTML(_heading(service, title), js_on_load=None)
        with gradio.Tab("Text"):
            _text_tab(gradio, service)
        with gradio.Tab("File"):
            _file_tab(gradio, service, uploads)
    # Gradio keeps the changed fields of this many sessions; requests of older sessions still work.
    blocks.state_session_capacity = _SESSIONS
    blocks.queue(max_size=_QUEUE_SIZE, default_concurrency_limit=1)
    parent = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # Gradio's default fonts are loaded from another host.
    theme = gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    options = {"max_file_size": service.limits.upload_bytes, "theme": theme, "css": _CSS}
    app = gradio.mount_gradio_app(parent, blocks, path="/", **_DISABLED, **options)
    # A mounted page is never launched; without this Gradio would not check that a file was uploaded.
    blocks.has_launched = True
    return app


def _heading(service: ExplanationService, title: str) -> str:
    facts = []
    for name, saved in service.runs:
        space = saved.label_space
        output = f"classes {', '.join(space.names[:8])}" if space.names else "a score"
        more = f" and {len(space.names) - 8} more" if len(space.names) > 8 else ""
        length = f", {saved.model.config.max_seq_length} tokens" if isinstance(saved, ModelPredictor) else ""
        facts.append(f"{name}: {saved.kind}, {output}{more}{length}")
    return html_parts.heading(title, facts)


def _text_tab(gradio: Any, service: ExplanationService) -> None:
    shown = _text_fields(gradio, service)
    given = [shown.text, shown.pair, shown.method, shown.unit, shown.target]
    fields: dict[str, Any] = {
        "inputs": given,
        "outputs": [shown.result, shown.slider, shown.masked, shown.table],
    }

    def explain(*given: Any) -> tuple[Any, ...]:
        result = handle_errors(ExplanationResult)(service.explain)(*given)
        words, label = result.words, html_parts.slider_label(result.words)
        return result.html, gradio.Slider(maximum=max(1, words), value=0, label=label, visible=words > 0), "", ""

    def explain_again(*given: Any) -> tuple[Any, ...]:
        return explain(*given) if given[0] or given[1] else (gradio.skip(),) * 4

    def mask(*given: Any) -> tuple[Any, ...]:
        html, label = handle_errors(lambda message: (message, html_parts.slider_label(0)))(service.mask)(*given)
        return html, gradio.Slider(label=label)

    def heads(*given: Any) -> str:
        return handle_errors(str)(service.heads)(*given)

    gradio.on([shown.button.click, shown.text.submit, shown.pair.submit], explain, **fields, **_ONE_AT_A_TIME)
    gradio.on([shown.method.input, shown.unit.input, shown.target.input], explain_again, **fields, **_ONE_AT_A_TIME)
    live = {"trigger_mode": "always_last", "show_progress": "hidden", **_ONE_AT_A_TIME}
    shown.slider.input(mask, [shown.text, shown.pair, shown.slider], [shown.masked, shown.slider], **live)
    triggers = [shown.show.click, shown.layer.release]
    gradio.on(triggers, heads, [shown.text, shown.pair, shown.layer, shown.unit], shown.table, **_ONE_AT_A_TIME)


def _text_fields(gradio: Any, service: ExplanationService) -> SimpleNamespace:
    """Create the fields of the text tab, in their order on the page."""
    text = gradio.Textbox(label="Text", lines=3, max_lines=12, autofocus=True, elem_id="text")
    pair = gradio.Textbox(label="Second text", lines=2, max_lines=12, visible=service.is_pair, elem_id="pair")
    with gradio.Row():
        method = gradio.Dropdown(list(service.methods), value=service.default_method, label="Method", elem_id="method")
        unit = gradio.Radio(_UNITS, value="word", label="Scores of", elem_id="unit")
        classes, has_classes = [PREDICTED, *service.classes], bool(service.classes)
        target = gradio.Dropdown(
            classes, value=PREDICTED, label="Class to explain", visible=has_classes, elem_id="target"
        )
    button = gradio.Button("Predict and explain", variant="primary", elem_id="explain")
    result = gradio.HTML(js_on_load=None, elem_id="result")
    # Its maximum is set with each text; the large default keeps requests of forgotten sessions valid.
    slider = gradio.Slider(
        0, _MOST_WORDS, value=0, step=1, label=html_parts.slider_label(0), visible=False, elem_id="slider"
    )
    masked = gradio.HTML(js_on_load=None, elem_id="masked")
    with gradio.Accordion("Attention heads", open=False, elem_id="heads"):
        layer = gradio.Slider(1, service.layers, value=service.layers, step=1, label="Layer", elem_id="layer")
        show = gradio.Button("Show heads", elem_id="show-heads")
        table = gradio.HTML(js_on_load=None, elem_id="head-table")
    return SimpleNamespace(
        text=text, pair=pair, method=method, unit=unit, target=target, button=button, result=result, slider=slider,
        masked=masked, layer=layer, show=show, table=table,
    )  # fmt: skip


def _file_tab(gradio: Any, service: ExplanationService, uploads: Path) -> None:
    shown = _file_fields(gradio, service)

    def predict(path: str | None, text_column: str, pair_column: str, with_words: bool) -> tuple[Any, ...]:
        if path is None:
            return html_parts.message("There is no file yet. Choose one, then try again."), gradio.File(visible=False)
        _remove_old(uploads)
        folder = Path(tempfile.mkdtemp(prefix="made-", dir=uploads))
        html, files = handle_errors(lambda message: (message, []))(service.file)(
            Path(path), folder, text_column=text_column, pair_column=pair_column, with_words=with_words
        )
        return html, gradio.File(value=[str(file) for file in files], visible=bool(files))

    given = [shown.file, shown.text_column, shown.pair_column, shown.with_words]
    shown.button.click(predict, given, [shown.table, shown.made], **_ONE_AT_A_TIME)


def _file_fields(gradio: Any, service: ExplanationService) -> SimpleNamespace:
    """Create the fields of the file tab, in their order on the page."""
    most = f"at most {service.limits.upload_bytes / 2**20:g} MB, {service.limits.rows:,} rows"
    kinds = list(ENDINGS)
    file = gradio.File(
        label=f"A file of texts ({', '.join(kinds)}; {most})", file_types=kinds, type="filepath", elem_id="file"
    )
    with gradio.Row():
        optional = {"placeholder": "detected automatically"}
        text_column = gradio.Textbox(label="Text column", elem_id="text-column", **optional)
        pair_column = gradio.Textbox(
            label="Second text column", visible=service.is_pair, elem_id="pair-column", **optional
        )
        scores_tokens = service.scores_tokens
        with_words = gradio.Checkbox(label="Add word importance", visible=scores_tokens, elem_id="with-words")
    return SimpleNamespace(
        file=file,
        text_column=text_column,
        pair_column=pair_column,
        with_words=with_words,
        button=gradio.Button("Predict", variant="primary", elem_id="predict-file"),
        table=gradio.HTML(js_on_load=None, elem_id="file-table"),
        made=gradio.File(label="Predictions", file_count="multiple", interactive=False, visible=False, elem_id="made"),
    )


def _remove_old(uploads: Path) -> None:
    """Remove old predictions; downloads are copies, which Gradio keeps for as long."""
    for folder in uploads.glob("made-*"):
        if time.time() - folder.stat().st_mtime > _KEEP_S:
            shutil.rmtree(folder, ignore_errors=True)
