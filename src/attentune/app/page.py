"""The Gradio page: its fields, and the methods of the service that they call. Nothing is computed here."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attentune.app import html as html_parts
from attentune.app.endpoints import MOST_WAITING, add_endpoints
from attentune.app.headline import headline
from attentune.app.report_page import ReportPage
from attentune.app.service import PREDICTED, ExplanationService, handle_errors
from attentune.app.tabs import KEEP_S, ONE_AT_A_TIME, add_errors_tab, add_file_tab, add_report_tab

_SESSIONS = 100
# Gradio features that the page does not use: links, records of requests, other servers.
_DISABLED: dict[str, Any] = {
    "footer_links": [], "run_history": False, "show_error": False, "ssr_mode": False, "pwa": False,
    "mcp_server": False, "enable_monitoring": False,
}  # fmt: skip
_LEVELS = [("words", "word"), ("pieces", "token")]
_FIELD_PX = 220  # fields side by side are not narrower
# White on the default orange is hard to read.
_BUTTON = {
    "button_primary_background_fill": "*primary_700", "button_primary_background_fill_hover": "*primary_800",
    "button_primary_background_fill_dark": "*primary_700", "button_primary_background_fill_hover_dark": "*primary_800",
    "button_primary_text_color": "white",
}  # fmt: skip


def gradio_app(service: ExplanationService, uploads: Path, *, title: str, report: ReportPage | None = None) -> Any:
    """Build the page as an ASGI application, without `app.security`."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    import gradio
    from fastapi import FastAPI

    with gradio.Blocks(title=title, analytics_enabled=False, delete_cache=(600, KEEP_S)) as blocks:
        _html(gradio, headline(service.runs))
        with gradio.Tabs(elem_id="tabs") as tabs:
            with gradio.Tab("Text", id="text"):
                shown, explain = _text_tab(gradio, service, blocks)
            with gradio.Tab("Errors", id="errors") as errors_tab:
                clicked = add_errors_tab(gradio, service, errors_tab, script("errors.js"))
            with gradio.Tab("File", id="file"):
                add_file_tab(gradio, service, uploads)
            if report is not None:
                with gradio.Tab("Report", id="report") as report_tab:
                    add_report_tab(gradio, report, report_tab)
        _explain_on_click(gradio, clicked, tabs, shown, explain)
    # Gradio keeps the changed fields of this many sessions; requests of older sessions still work.
    blocks.state_session_capacity = _SESSIONS
    blocks.queue(max_size=MOST_WAITING, default_concurrency_limit=1)
    parent = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_endpoints(parent, service, report)
    # Gradio's default fonts are loaded from another host.
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    theme = gradio.themes.Default(primary_hue="blue", **fonts).set(**_BUTTON)
    options = {"max_file_size": service.limits.upload_bytes, "theme": theme, "css": script("page.css")}
    app = gradio.mount_gradio_app(parent, blocks, path="/", **_DISABLED, **options)
    # A mounted page is never launched; without this Gradio would not check that a file was uploaded.
    blocks.has_launched = True
    return app


def script(name: str) -> str:
    """Return the text of a script or style sheet of this folder."""
    return (resources.files("attentune.app") / name).read_text(encoding="utf-8")


def _html(gradio: Any, value: str = "", *, js: str | None = None, **options: Any) -> Any:
    return gradio.HTML(value, js_on_load=js, apply_default_css=False, **options)


def _text_tab(gradio: Any, service: ExplanationService, blocks: Any) -> tuple[SimpleNamespace, dict[str, Any]]:
    """Create the tab; return its fields, and the function that explains with its inputs and outputs."""
    shown = _text_fields(gradio, service)
    given = [shown.text, shown.pair, shown.method, shown.level, shown.target]
    fields: dict[str, Any] = {"inputs": given, "outputs": [shown.result, shown.table, shown.about]}
    example = service.example

    def explain(text: Any, pair: Any, *options: Any) -> tuple[Any, ...]:
        is_example = text == example.text and (pair or "") == example.pair
        about = html_parts.note(example.about) if is_example else ""
        return handle_errors(str)(service.explain)(text, pair, *options), "", about

    def explain_again(*given: Any) -> tuple[Any, ...]:
        return explain(*given) if given[0] or given[1] else (gradio.skip(),) * 3

    def heads(*given: Any) -> str:
        return handle_errors(str)(service.heads)(*given)

    gradio.on([shown.button.click, shown.text.submit, shown.pair.submit], explain, **fields, **ONE_AT_A_TIME)
    gradio.on([shown.method.input, shown.level.input, shown.target.input], explain_again, **fields, **ONE_AT_A_TIME)
    blocks.load(explain_again, **fields, **ONE_AT_A_TIME)  # the example
    triggers = [shown.show.click, shown.layer.release]
    gradio.on(triggers, heads, [shown.text, shown.pair, shown.layer, shown.level], shown.table, **ONE_AT_A_TIME)
    return shown, {"fn": explain, **fields, **ONE_AT_A_TIME}


def _text_fields(gradio: Any, service: ExplanationService) -> SimpleNamespace:
    """Create the fields of the text tab, in their order on the page."""
    example = service.example
    text = gradio.Textbox(example.text, label="Text", lines=2, max_lines=12, autofocus=True, elem_id="text")
    pair = gradio.Textbox(
        example.pair, label="Second text", lines=2, max_lines=12, visible=service.is_pair, elem_id="pair"
    )
    about = _html(gradio, html_parts.note(example.about), elem_id="about")
    with gradio.Row():
        methods = list(service.methods)
        method = gradio.Dropdown(
            methods, value=service.default_method, label="Explanation method", elem_id="method", min_width=_FIELD_PX
        )
        level = gradio.Radio(_LEVELS, value="word", label="Scores of", elem_id="level", min_width=_FIELD_PX)
        classes, has_classes = [PREDICTED, *service.classes], bool(service.classes)
        target = gradio.Dropdown(
            classes,
            value=PREDICTED,
            label="Class to explain",
            visible=has_classes,
            elem_id="target",
            min_width=_FIELD_PX,
        )
    button = gradio.Button("Predict and explain", variant="primary", elem_id="explain")
    result = _html(gradio, js=script("words.js"), elem_id="result")
    with gradio.Accordion("Attention heads", open=False, elem_id="heads", visible=service.layers > 0):
        # Gradio refuses a slider of one value; the whole part is hidden for runs without layers.
        layer = gradio.Slider(
            1, max(2, service.layers), value=max(1, service.layers), step=1, label="Layer", elem_id="layer"
        )
        show = gradio.Button("Show heads", elem_id="show-heads")
        table = _html(gradio, elem_id="head-table")
    return SimpleNamespace(
        text=text, pair=pair, about=about, method=method, level=level, target=target, button=button, result=result,
        layer=layer, show=show, table=table,
    )  # fmt: skip


def _explain_on_click(gradio: Any, clicked: Any, tabs: Any, shown: SimpleNamespace, explain: dict[str, Any]) -> None:
    """Explain the text of the table of errors that is clicked: fill the fields, show their tab, and explain."""

    def take(event: Any) -> tuple[Any, ...]:
        text, pair = event._data["text"], event._data.get("pair") or ""
        return str(text), str(pair), gradio.Tabs(selected="text")

    take.__annotations__["event"] = gradio.EventData  # by which Gradio knows that it passes the event
    fields = [shown.text, shown.pair, tabs]
    taken = clicked.click(take, None, fields, show_progress="hidden", api_visibility="private", concurrency_limit=4)
    taken.then(**explain)
