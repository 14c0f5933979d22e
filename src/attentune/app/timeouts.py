"""How long a visitor may take: connections that send nothing, or a byte now and then, are let go.

uvicorn waits for the head of a request without an end, so that a few hundred connections of anyone could hold up all.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

# For the head of a request.
HEAD_S = 10.0
# A browser opens six connections; those of waiting visitors count too.
CONNECTIONS = 900


class HeaderTimeout(H11Protocol):
    """One connection, closed where a request's head has not come in time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = self.loop.time()
        self._timer = self.loop.call_later(HEAD_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        """Whether a head is awaited for too long; else look again when it would be."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        left = HEAD_S if is_answering else self._since + HEAD_S - self.loop.time()
        if left <= 0:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(left, self._look)
