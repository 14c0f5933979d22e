"""Protection that every server of this package has: allowed hosts, origin, body size and time, response headers.

Any web site that its user visits can reach a server on a loopback address: by a cross-origin request, or under a host
name of the site's own that resolves to 127.0.0.1 (DNS rebinding). Starlette checks the Host header and the size of the
body; `Guard` adds what it lacks.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from attentune.errors import ConfigError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
BODY_TIMEOUT_S = 30.0
_SCRIPT = re.compile(rb"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL | re.IGNORECASE)
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def protect(app: App, *, hosts: Iterable[str] | None, body_bytes: int) -> App:
    """Wrap a guarded application in Starlette's checks of the host and of the size of the body."""
    from starlette.middleware.body_limit import RequestBodyLimitMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    limited = RequestBodyLimitMiddleware(app, max_body_size=body_bytes)
    if hosts is None:
        return limited
    return TrustedHostMiddleware(limited, allowed_hosts=allowed_hosts(hosts), www_redirect=False)


def allowed_hosts(hosts: Iterable[str]) -> list[str]:
    """Normalize host names for `TrustedHostMiddleware` and add those of loopback."""
    names = [host_name(host) for host in hosts]
    for name in names:
        if "*" in name.removeprefix("*."):
            raise ConfigError(
                f"--allowed_hosts {name}: expected host names such as lab-3.example.org, or *.example.org for all"
                " subdomains. Any further wildcard would let other web sites use the server."
            )
    return [*LOOPBACK, *names]


def host_name(host: str) -> str:
    """Return the lower-case host of a Host header without its port; IPv6 addresses get brackets."""
    host = host.strip().lower()
    if host.count(":") > 1 and not host.startswith("["):
        return f"[{host}]"
    return re.sub(r":\d*$", "", host)


class Guard:
    """Refuses cross-origin requests and stalled bodies, and adds security headers to responses.

    CORS middleware does not refuse requests: it only hides the response of a cross-origin request that has already run.
    The response to a refused request is one sentence with status 403 or 408, or as `refusal` says.
    """

    def __init__(self, app: App, *, body_timeout_s: float = BODY_TIMEOUT_S) -> None:
        self._app, self._body_timeout_s = app, body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":  # no server of this package uses web sockets
            await send({"type": "websocket.close", "code": 1008})
        else:
            refusal = self.refusal(scope, headers_of(scope))
            if refusal is not None:
                await respond(send, *refusal)
            else:
                await self._forward(scope, receive, send)

    def refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Return the status and the reason if the request line or headers are refused."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, (
                f"The request comes from a page of {origin[:200]}, expected one of {host[:200]}. Open this page by its"
                " own address."
            )
        return None

    def response(self, scope: Scope, send: Send) -> GuardedResponse:
        """Return what sends the response to a request, with the security headers."""
        return GuardedResponse(send)

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer a request that is not refused."""
        await self._app(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = self.response(scope, send)
        try:
            await self.forward(scope, _with_timeout(receive, self._body_timeout_s), response)
        except BodyTimeoutError as error:
            if not response.started:
                await respond(send, 408, str(error))


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers of a request by their lower-case names; of repeated ones the last."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


class BodyTimeoutError(Exception):
    """The body of a request did not arrive in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The rest of the request did not arrive within {timeout_s:g} s. Send it again.")


def _with_timeout(receive: Receive, timeout_s: float) -> Receive:
    """Limit the wait for each part of the body; uvicorn has no such timeout."""
    is_complete = False

    async def timed() -> Message:
        nonlocal is_complete
        try:  # after the body, the next message is the disconnect, which may come at any time
            message = await (receive() if is_complete else asyncio.wait_for(receive(), timeout_s))
        except TimeoutError:
            raise BodyTimeoutError(timeout_s) from None
        is_complete = is_complete or not message.get("more_body", False)
        return message

    return timed


class GuardedResponse:
    """Adds the security headers to a response."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        """Send a message of the response."""
        if message["type"] == "http.response.start":
            await self.send_start(message)
        else:
            await self._send(message)

    async def send_start(self, message: Message, more: Mapping[str, str] | None = None) -> None:
        """Send the head, with the security headers and `more` in place of the application's own."""
        self.started = True
        security = {**HEADERS, **(more or {})}
        added = [(name.encode(), value.encode()) for name, value in security.items()]
        others = [(name, value) for name, value in message.get("headers", []) if name.lower().decode() not in security]
        await self._send({**message, "headers": [*others, *added]})


class PageResponse(GuardedResponse):
    """Adds a content security policy, which allows exactly the scripts that a page contains."""

    def __init__(self, send: Send, *, policy: str, is_page: bool, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(send)
        self._policy, self._is_page, self._headers = policy, is_page, headers or {}
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        """Send a message of the response; those of a page are held back until it is complete."""
        if message["type"] == "http.response.start" and self._is_page:
            self._start = message
        elif self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                policy = scripts_policy(self._body, self._policy)
                await self.send_start(self._start, {"content-security-policy": policy, **self._headers})
                self._start = None
                await self._send({"type": "http.response.body", "body": self._body})
        elif message["type"] == "http.response.start":
            policy = self._policy.format(scripts="")
            await self.send_start(message, {"content-security-policy": policy, **self._headers})
        else:
            await self._send(message)


def scripts_policy(page: bytes, policy: str) -> str:
    """Build a content security policy that allows only the inline scripts of a page, by their hashes.

    Attributes such as onerror do not run, and nothing is loaded from another host.
    """
    hashes = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in _SCRIPT.findall(page) if text]
    return policy.format(scripts="".join(f" 'sha256-{digest}'" for digest in hashes))


async def respond(send: Send, status: int, text: str) -> None:
    """Send a response of one sentence, and close the connection."""
    body = (text + "\n").encode()
    headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), "connection": "close"}
    pairs = [(name.encode(), value.encode()) for name, value in {**HEADERS, **headers}.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
