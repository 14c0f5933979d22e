"""Timeout for the request head, and the limit on connections.

uvicorn waits without limit for the head of a request: its `timeout_keep_alive` applies only between requests of one
connection. A client that opens a few hundred connections and sends nothing could block all others.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

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
