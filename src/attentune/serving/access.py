"""Who may use the API, and its errors as JSON."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from attentune.errors import ConfigError
from attentune.serving.guard import App, Guard, GuardedResponse, Message, PageResponse, Receive, Scope, Send

KEY_VARIABLE = "ATTENTUNE_API_KEY"
_MIN_KEY = 16
# What needs no key: the health check, and the description of the API, which says nothing about texts.
_OPEN = ("/", "/health", "/docs", "/openapi.json")
_OPEN_FOLDER = "/static-offline-docs/"
_POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def check_key(key: str | None, source: str) -> str | None:
    """Return the API key; None for none."""
    if key is None:
        return None
    if len(key) < _MIN_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"{source}: expected a key of at least {_MIN_KEY} ASCII characters without spaces (got {len(key)}"
            ' characters). Make one: python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return key


class ApiGuard(Guard):
    """A guard that also asks for the API key, before it reads the body."""

    def __init__(self, app: App, *, api_key: str | None, **options: Any) -> None:
        super().__init__(app, **options)
        self._key = None if api_key is None else api_key.encode()

    def refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Return the status and the reason if the request line or headers are refused."""
        path = scope["path"]
        if self._key is not None and path not in _OPEN and not path.startswith(_OPEN_FOLDER):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            given = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
            # compare_digest takes as long for a wrong key as for the right one.
            if not hmac.compare_digest(given.encode("latin-1"), self._key):
                return 401, (
                    f"The API key is {'wrong' if given else 'missing'}. Send the key that the server was started with"
                    " in the header Authorization: Bearer KEY, or X-API-Key: KEY."
                )
        return super().refusal(scope, headers)

    def response(self, scope: Scope, send: Send) -> GuardedResponse:
        """Return what sends the response to a request, with the security headers."""
        return PageResponse(send, policy=_POLICY, is_page=scope["path"] == "/docs")


class JsonErrors:
    """Turns errors that are plain text into JSON, `{"detail": MESSAGE}`, and counts all requests."""

    def __init__(self, app: App, *, messages: Mapping[int, str], count: Callable[[str, int, float], None]) -> None:
        self._app, self._messages, self._count = app, messages, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, response = time.perf_counter(), _JsonError(send, self._messages)
        try:
            await self._app(scope, receive, response)
        finally:
            self._count(scope["path"], response.status, time.perf_counter() - began)


class _JsonError:
    """Sends a response; the text of an error is held back until it is complete."""

    def __init__(self, send: Send, messages: Mapping[int, str]) -> None:
        self._send, self._messages = send, messages
        self._start: Message | None = None
        self._body = b""
        self.status = 500

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kind = dict(message["headers"]).get(b"content-type", b"")
            if self.status >= 400 and kind.startswith(b"text/plain"):
                self._start = message
            else:
                await self._send(message)
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._send_json(self._start)

    async def _send_json(self, start: Message) -> None:
        detail = self._messages.get(self.status) or self._body.decode().strip()
        body = json.dumps({"detail": detail}).encode()
        changed = {b"content-type": b"application/json", b"content-length": str(len(body)).encode()}
        if self.status == 401:
            changed[b"www-authenticate"] = b"Bearer"
        headers = [(name, value) for name, value in start["headers"] if name.lower() not in changed]
        await self._send({**start, "headers": [*headers, *changed.items()]})
        await self._send({"type": "http.response.body", "body": body})
