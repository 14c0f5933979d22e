"""Serve the page: build the application with its checks, and run it."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from attentune.app.security import protect
from attentune.app.service import ExplanationService
from attentune.serving.guard import App
from attentune.serving.server import on_sigterm, run_server


def serve(
    service: ExplanationService,
    listener: socket.socket,
    *,
    hosts: Sequence[str],
    title: str,
    build_report: Callable[[Path], None] | None = None,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the page until Ctrl-C or SIGTERM, which stop it in the same way: temporary files are removed."""
    with tempfile.TemporaryDirectory(prefix="attentune-app-") as folder, on_sigterm(_interrupt):
        app = page_app(service, Path(folder), hosts=hosts, title=title, build_report=build_report)
        run_server(app, listener, graceful_s=2, ready=ready)


def page_app(
    service: ExplanationService,
    folder: Path,
    *,
    hosts: Sequence[str],
    title: str,
    build_report: Callable[[Path], None] | None = None,
) -> App:
    """Build the application with all checks; it stores its files in `folder`. For the arguments see `serve`."""
    from attentune.app.page import gradio_app
    from attentune.app.report_page import ReportPage

    uploads = (folder / "files").resolve()
    uploads.mkdir(exist_ok=True)
    report = None if build_report is None else ReportPage(folder / "report.html", build_report)
    app = gradio_app(service, uploads, title=title, report=report)
    return protect(app, hosts=hosts, uploads=uploads, body_bytes=service.limits.body_bytes)


def _interrupt() -> None:
    raise KeyboardInterrupt
