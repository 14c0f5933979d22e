"""The page in Gradio: which fields there are, and which function of the desk answers which. Nothing is computed here."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from attentune.app import boxes
from attentune.app.desk import PREDICTED, Desk, told
from attentune.app.files import ENDINGS

_KEEP_S = 3600
_WAITING = 64
_CSS = f"""{boxes.STYLE}
.gradio-container {{ max-width: 76rem !important; margin: 0 auto !important; }}
.att-title {{ font-size: 1.25rem; font-weight: 600; margin: 0; color: var(--body-text-color); overflow-wrap: anywhere; }}
.att-title + p {{ margin: .2rem 0 0; color: var(--body-text-color-subdued); font-size: .9rem; overflow-wrap: anywhere; }}
"""
_UNITS = [("words", "word"), ("pieces", "token")]


def gradio_app(desk: Desk, uploads: Path, *, title: str) -> Any:
    """The page as an ASGI application, without any guard.

    Args:
        desk: what answers.
        uploads: an empty folder for files that come and go.
        title: of the page.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    import gradio
    from fastapi import FastAPI

    with gradio.Blocks(title=title, analytics_enabled=False, delete_cache=(600, _KEEP_S)) as blocks:
        gradio.HTML(_heading(desk, title), js_on_load=None)
        with gradio.Tab("Text"):
            _text_tab(gradio, desk)
        with gradio.Tab("File"):
            _file_tab(gradio, desk, uploads)
    blocks.queue(max_size=_WAITING, default_concurrency_limit=1)
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    served = gradio.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        blocks,
        path="/",
        footer_links=[],
        run_history=False,
        max_file_size=desk.limits.upload_bytes,
        show_error=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        theme=gradio.themes.Default(**fonts),
        css=_CSS,
    )
    # Mounted pages are not launched; without this Gradio would not ask whether a file was uploaded.
    blocks.has_launched = True
    return served


def _heading(desk: Desk, title: str) -> str:
    facts = []
    for name, saved in desk.runs:
        space, config = saved.label_space, saved.model.config
        said = f"classes {', '.join(space.names[:8])}" if space.names else "a score"
        more = f" and {len(space.names) - 8} more" if len(space.names) > 8 else ""
        facts.append(f"{name}: {saved.model.encoder.config.model_type}, {said}{more}, {config.max_seq_length} tokens")
    return boxes.heading(title, facts)


def _text_tab(gradio: Any, desk: Desk) -> None:
    text = gradio.Textbox(label="Text", lines=3, max_lines=12, autofocus=True, elem_id="text")
    pair = gradio.Textbox(label="Second text", lines=2, max_lines=12, visible=desk.is_pair, elem_id="pair")
    with gradio.Row():
        method = gradio.Dropdown(list(desk.methods), value=desk.default_method, label="Method", elem_id="method")
        unit = gradio.Radio(_UNITS, value="word", label="Scores of", elem_id="unit")
        target = gradio.Dropdown(
            [PREDICTED, *desk.classes],
            value=PREDICTED,
            label="Class to explain",
            visible=bool(desk.classes),
            elem_id="target",
        )
    button = gradio.Button("Predict and explain", variant="primary", elem_id="explain")
    result = gradio.HTML(js_on_load=None, elem_id="result")
    slider = gradio.Slider(0, 1, value=0, step=1, label=boxes.slider_label(0), visible=False, elem_id="slider")
    masked = gradio.HTML(js_on_load=None, elem_id="masked")
    with gradio.Accordion("Attention heads", open=False, elem_id="heads"):
        layer = gradio.Slider(1, desk.layers, value=desk.layers, step=1, label="Layer", elem_id="layer")
        show = gradio.Button("Show heads", elem_id="show-heads")
        table = gradio.HTML(js_on_load=None, elem_id="head-table")

    def show_explanation(*given: Any) -> tuple[Any, ...]:
        shown = told(_no_words)(lambda: _words(desk.explain(*given)))()
        html, count = shown
        label = boxes.slider_label(count)
        return html, gradio.Slider(maximum=max(1, count), value=0, label=label, visible=count > 0), "", ""

    def explain_again(*given: Any) -> tuple[Any, ...]:
        if not given[0] and not given[1]:
            return (gradio.skip(),) * 4
        return show_explanation(*given)

    def show_masked(*given: Any) -> tuple[Any, ...]:
        html, label = told(lambda message: (message, boxes.slider_label(0)))(desk.mask)(*given)
        return html, gradio.Slider(label=label)

    one_by_one = {"concurrency_id": "runs", "concurrency_limit": 1, "api_visibility": "private"}
    asked = {"inputs": [text, pair, method, unit, target], "outputs": [result, slider, masked, table]}
    gradio.on([button.click, text.submit, pair.submit], show_explanation, **asked, **one_by_one)
    gradio.on([method.input, unit.input, target.input], explain_again, **asked, **one_by_one)
    slider.input(
        show_masked,
        [text, pair, slider],
        [masked, slider],
        trigger_mode="always_last",
        show_progress="hidden",
        **one_by_one,
    )
    gradio.on(
        [show.click, layer.release], told(lambda message: message)(desk.heads), [text, pair, layer, unit], table,
        **one_by_one,
    )  # fmt: skip


def _words(shown: Any) -> tuple[str, int]:
    return shown.html, shown.words


def _no_words(message: str) -> tuple[str, int]:
    return message, 0


def _file_tab(gradio: Any, desk: Desk, uploads: Path) -> None:
    limits = desk.limits
    file = gradio.File(
        label=f"A file of texts ({', '.join(ENDINGS)}; at most {limits.upload_bytes / 2**20:g} MB,"
        f" {limits.rows:,} rows)",
        file_types=list(ENDINGS),
        type="filepath",
        elem_id="file",
    )
    with gradio.Row():
        text_column = gradio.Textbox(label="Text's column", placeholder="found by itself", elem_id="text-column")
        pair_column = gradio.Textbox(
            label="Second text's column", placeholder="found by itself", visible=desk.is_pair, elem_id="pair-column"
        )
        with_words = gradio.Checkbox(
            label="Add each word's importance", visible=desk.scores_tokens, elem_id="with-words"
        )
    button = gradio.Button("Predict", variant="primary", elem_id="predict-file")
    table = gradio.HTML(js_on_load=None, elem_id="file-table")
    made = gradio.File(label="Predictions", file_count="multiple", interactive=False, visible=False, elem_id="made")

    def predict(path: str | None, text_column: str, pair_column: str, with_words: bool) -> tuple[Any, ...]:
        if path is None:
            return boxes.message("There is no file yet. Choose one, then ask again."), gradio.File(visible=False)
        _forget_old(uploads)
        folder = Path(tempfile.mkdtemp(prefix="made-", dir=uploads))
        options = {"text_column": text_column, "pair_column": pair_column, "with_words": with_words}
        html, files = told(lambda message: (message, []))(desk.file)(Path(path), folder, **options)
        return html, gradio.File(value=[str(file) for file in files], visible=bool(files))

    button.click(
        predict,
        [file, text_column, pair_column, with_words],
        [table, made],
        concurrency_id="runs",
        concurrency_limit=1,
        api_visibility="private",
    )


def _forget_old(uploads: Path) -> None:
    """Remove predictions that were made long ago; what visitors download are copies that Gradio keeps as long."""
    for folder in uploads.glob("made-*"):
        if time.time() - folder.stat().st_mtime > _KEEP_S:
            shutil.rmtree(folder, ignore_errors=True)

