"""Run an ASGI application with uvicorn in this process: bind the socket, answer, and stop without error output."""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from attentune.errors import ConfigError
from attentune.serving.guard import App

HEAD_TIMEOUT_S = 10.0
# A browser opens up to six connections, and connections of waiting users count too.
MAX_CONNECTIONS = 900


class HeaderTimeout(H11Protocol):
    """An HTTP connection that is closed if the head of a request does not arrive in time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waiting_since = self.loop.time()
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._waiting_since = self.loop.time()
        super().on_response_complete()

    def _check(self) -> None:
        """Close the connection if its head is overdue; otherwise check again at the deadline."""
        is_responding = self.cycle is not None and not self.cycle.response_complete
        left = HEAD_TIMEOUT_S if is_responding else self._waiting_since + HEAD_TIMEOUT_S - self.loop.time()
        if left <= 0:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(left, self._check)


def bound_socket(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free port."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=128)
        # Its connections inherit this. An answer is sent in two parts, of which the second would otherwise wait for
        # the client's delayed acknowledgement of the first: 40 ms. (asyncio sets it on sockets that it opens itself.)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        # For unknown host names errno is negative and strerror is needed; otherwise strerror repeats the address.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there ({reason}). Choose another port, such as"
            f" --port {port + 1 if 0 < port < 65535 else 7861}, or --port 0 for any free port."
        ) from error


def address(listener: socket.socket) -> str:
    """Return the URL of the server for a client on this machine."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/"


class _Server(uvicorn.Server):
    """Calls `ready` once it has started: an interrupt before that would make uvicorn log a traceback."""

    ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Without errors about connections that the shutdown closes.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        await super().shutdown(sockets)


def run_server(app: App, listener: socket.socket, *, graceful_s: int, ready: Callable[[str], None]) -> None:
    """Answer requests until Ctrl-C or SIGTERM; call it in a block of `on_sigterm`."""
    config = uvicorn.Config(
        app,
        http=HeaderTimeout,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=graceful_s,
        limit_concurrency=MAX_CONNECTIONS,
    )
    server = _Server(config)
    server.ready = lambda: ready(address(listener))
    server.run(sockets=[listener])


@contextlib.contextmanager
def on_sigterm(react: Callable[[], None]) -> Iterator[None]:
    """Call `react` on SIGTERM while the block runs; uvicorn, while it runs, stops first, then passes it on."""

    def stop(number: int, frame: FrameType | None) -> None:
        react()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
