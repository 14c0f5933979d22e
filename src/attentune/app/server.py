"""Serve the page: bind the socket, run uvicorn in this process, and stop without error output."""

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

from attentune.app.security import App, protect
from attentune.app.service import ExplanationService
from attentune.errors import ConfigError


def bound_socket(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free port.

    Raises:
        ConfigError: the address does not belong to this machine, or the port is in use.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        # For unknown host names errno is negative and strerror is needed; otherwise strerror repeats the address.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there ({reason}). Choose another port, such as"
            f" --port {port + 1 if 0 < port < 65535 else 7861}, or --port 0 for any free port."
        ) from error


def address(listener: socket.socket) -> str:
    """Return the URL of the page for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/"


def serve(
    service: ExplanationService,
    listener: socket.socket,
    *,
    hosts: Sequence[str],
    title: str,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Args:
        service: the service that answers the requests.
        listener: from `bound_socket`.
        hosts: allowed host names in addition to those of loopback.
        title: the title of the page.
        ready: called with the URL of the page when it accepts connections.

    Raises:
        ConfigError: a host name is not valid.
        KeyboardInterrupt: the server was stopped.
    """
    import uvicorn

    from attentune.app.timeouts import MAX_CONNECTIONS, HeaderTimeout

    with tempfile.TemporaryDirectory(prefix="attentune-app-") as folder, _sigterm_as_interrupt():
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
                limit_concurrency=MAX_CONNECTIONS,
            )
        )
        _silence_shutdown(server)
        ready(address(listener))
        server.run(sockets=[listener])


def page_app(service: ExplanationService, folder: Path, *, hosts: Sequence[str], title: str) -> App:
    """Build the application with all checks; it stores its files in `folder`."""
    from attentune.app.page import gradio_app

    uploads = (folder / "files").resolve()
    uploads.mkdir(exist_ok=True)
    app = gradio_app(service, uploads, title=title)
    return protect(app, hosts=hosts, uploads=uploads, body_bytes=service.limits.body_bytes)


def _silence_shutdown(server: Any) -> None:
    """Suppress uvicorn's errors about connections that the shutdown closes."""
    end = server.shutdown

    async def shutdown(sockets: list[socket.socket] | None = None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        await end(sockets=sockets)

    server.shutdown = shutdown


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: temporary files are removed, and the exit status is 130."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
