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
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the page until Ctrl-C or SIGTERM, which stop it in the same way: temporary files are removed.

    Args:
        service: the service that answers the requests.
        listener: from `serving.server.bound_socket`.
        hosts: allowed host names in addition to those of loopback.
        title: the title of the page.
        ready: called with the URL of the page when it accepts connections.

    Raises:
        ConfigError: a host name is not valid.
        KeyboardInterrupt: the server was stopped.
    """
    with tempfile.TemporaryDirectory(prefix="attentune-app-") as folder, on_sigterm(_interrupt):
        app = page_app(service, Path(folder), hosts=hosts, title=title)
        run_server(app, listener, graceful_s=2, ready=ready)


def page_app(service: ExplanationService, folder: Path, *, hosts: Sequence[str], title: str) -> App:
    """Build the application with all checks; it stores its files in `folder`."""
    from attentune.app.page import gradio_app

    uploads = (folder / "files").resolve()
    uploads.mkdir(exist_ok=True)
    app = gradio_app(service, uploads, title=title)
    return protect(app, hosts=hosts, uploads=uploads, body_bytes=service.limits.body_bytes)


def _interrupt() -> None:
    raise KeyboardInterrupt
