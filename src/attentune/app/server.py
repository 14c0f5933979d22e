"""Serving the page: a socket that is ours, one process, and an end without noise."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from attentune.app.security import SecurityMiddleware
from attentune.app.service import ExplanationService
from attentune.errors import ConfigError


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one.

    Raises:
        ConfigError: the address is not one of this machine, or the port is taken.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        # A name that is not known has a number below 0 and its own words; other reasons come with the address again.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there ({reason}). Take another port, such as"
            f" --port {port + 1 if 0 < port < 65535 else 7861}, or --port 0 for any free one."
        ) from error


def address(listening: socket.socket) -> str:
    """Where a browser on this machine finds the page."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/"


def serve(
    service: ExplanationService,
    listening: socket.socket,
    *,
    hosts: Sequence[str],
    title: str,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Args:
        service: what answers.
        listening: from `bound_socket`.
        hosts: names, besides those of loopback, under which the page may be asked for.
        title: the page's.
        ready: called with the page's address once it can be asked for.

    Raises:
        KeyboardInterrupt: it was stopped.
    """
    import uvicorn

    from attentune.app.timeouts import CONNECTIONS, HeaderTimeout

    with tempfile.TemporaryDirectory(prefix="attentune-app-") as folder, _stopping_politely():
        app = page_app(service, Path(folder), hosts=hosts, title=title)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=HeaderTimeout,
                log_level="warning",
                access_log=False,
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=2,
                limit_concurrency=CONNECTIONS,
            )
        )
        _end_quietly(server)
        ready(address(listening))
        server.run(sockets=[listening])


def page_app(service: ExplanationService, folder: Path, *, hosts: Sequence[str], title: str) -> SecurityMiddleware:
    """The guarded application, with its files in `folder`."""
    from attentune.app.page import gradio_app

    uploads = (folder / "files").resolve()
    uploads.mkdir(exist_ok=True)
    return SecurityMiddleware(
        gradio_app(service, uploads, title=title), hosts=hosts, uploads=uploads, body_bytes=service.limits.body_bytes
    )


def _end_quietly(server: Any) -> None:
    """Say nothing of visitors whose connections are cut at the end."""
    end = server.shutdown

    async def shutdown(sockets: list[socket.socket] | None = None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        await end(sockets=sockets)

    server.shutdown = shutdown


@contextlib.contextmanager
def _stopping_politely() -> Iterator[None]:
    """SIGTERM is as Ctrl-C: files are removed, and the status is 130."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
