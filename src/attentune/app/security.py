"""Protection of the page's server: allowed hosts, body size, origin, routes, file names and response headers.

Any web site that its user visits can reach a page on a loopback address: by a cross-origin request, or under a host
name of the site's own that resolves to 127.0.0.1 (DNS rebinding). Starlette checks the Host header and the size of the
body; `SecurityMiddleware` adds what neither Starlette nor Gradio has.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from attentune.errors import ConfigError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# The routes that the page uses. Gradio has no option to disable the others, such as API calls and deep links.
_GET = re.compile(
    r"/|/config/?|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt|/(assets|static|svelte)/.+"
    r"|/gradio_api/(info|app_id|startup-events|theme\.css|upload_progress|queue/(data|status)|file=.+)/?"
)
_POST = re.compile(r"/gradio_api/(queue/join|upload|cancel|reset)/?")
_JOIN = "/gradio_api/queue/join"
_SCRIPT = re.compile(rb"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL | re.IGNORECASE)
# Gradio's front end compiles its templates at run time, hence 'unsafe-eval'; scripts in a text remain forbidden.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self'"
    " data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self';"
    " frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def protect(app: App, *, hosts: Iterable[str], uploads: Path, body_bytes: int) -> App:
    """Wrap an ASGI application in all checks.

    Args:
        app: the application.
        hosts: allowed host names in addition to those of loopback.
        uploads: the folder of uploaded files.
        body_bytes: the maximum size of a request body.

    Raises:
        ConfigError: a host name contains a wildcard anywhere but as `*.` at its start.
    """
    from starlette.middleware.body_limit import RequestBodyLimitMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    limited = RequestBodyLimitMiddleware(SecurityMiddleware(app, uploads=uploads), max_body_size=body_bytes)
    return TrustedHostMiddleware(limited, allowed_hosts=allowed_hosts(hosts), www_redirect=False)


def allowed_hosts(hosts: Iterable[str]) -> list[str]:
    """Normalize host names for `TrustedHostMiddleware` and add those of loopback.

    Args:
        hosts: names or addresses, with or without a port; `*.example.org` allows all subdomains.

    Raises:
        ConfigError: a name contains a wildcard anywhere but as `*.` at its start.
    """
    names = [host_name(host) for host in hosts]
    for name in names:
        if "*" in name.removeprefix("*."):
            raise ConfigError(
                f"--allowed_hosts {name}: expected host names such as lab-3.example.org, or *.example.org for all"
                " subdomains. Any further wildcard would let other web sites use the page."
            )
    return [*LOOPBACK, *names]


def host_name(host: str) -> str:
    """Return the lower-case host of a Host header without its port; IPv6 addresses get brackets."""
    host = host.strip().lower()
    if host.count(":") > 1 and not host.startswith("["):
        return f"[{host}]"
    return re.sub(r":\d*$", "", host)


class SecurityMiddleware:
    """Refuses cross-origin requests, unused routes, names of other files and stalled bodies; adds security headers.

    CORS middleware does not refuse requests: it only hides the response of a cross-origin request that has already run.
    The response to a refused request is one sentence with status 403, 404 or 408.

    Args:
        app: an ASGI application.
        uploads: the folder of uploaded files; a request may not name any other file.
        body_timeout_s: the longest wait for the next part of a request body.
    """

    def __init__(self, app: App, *, uploads: Path, body_timeout_s: float = 30.0) -> None:
        self._app, self._uploads, self._body_timeout_s = app, uploads.resolve(), body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":  # the page uses no web sockets
            await send({"type": "websocket.close", "code": 1008})
        else:
            refusal = _refusal(scope)
            if refusal is not None:
                await _respond(send, *refusal)
            else:
                await self._forward(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = _Response(send, is_page=scope["path"] == "/")
        timed = _with_timeout(receive, self._body_timeout_s)
        try:
            if scope["path"].rstrip("/") == _JOIN:
                body = await _read_body(timed)
                if not self._names_uploads_only(body):
                    await _respond(send, 403, "The request names a file that was not uploaded here. Upload it first.")
                    return
                await self._app(scope, _replay(body, receive), response)
            else:
                await self._app(scope, timed, response)
        except _BodyTimeout:
            if not response.started:
                await _respond(
                    send,
                    408,
                    f"The rest of the request did not arrive within {self._body_timeout_s:g} s. Send it again.",
                )

    def _names_uploads_only(self, body: bytes) -> bool:
        """Return whether every file that this JSON names is in the folder of uploads.

        Gradio itself refuses other files of this machine, but would download URLs of other hosts.
        """
        try:
            pending: list[Any] = [json.loads(body)]
        except (ValueError, RecursionError):
            return True  # Gradio answers with the reason.
        while pending:
            value = pending.pop()
            if isinstance(value, list):
                pending += value
            elif isinstance(value, dict):
                pending += value.values()
                if isinstance(value.get("path"), str) and not self._is_upload(value["path"]):
                    return False
        return True

    def _is_upload(self, path: str) -> bool:
        try:
            return Path(path).resolve().is_relative_to(self._uploads)
        except (OSError, ValueError):
            return False


def _refusal(scope: Scope) -> tuple[int, str] | None:
    """Return the status and the reason if the request line or headers are refused."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        return 403, (
            f"The request comes from a page of {origin[:200]}, expected one of {host[:200]}. Open this page by its own"
            " address."
        )
    path, allowed = unquote(scope["path"]), {"GET": _GET, "HEAD": _GET, "POST": _POST}.get(scope["method"])
    if allowed is None or not allowed.fullmatch(path) or re.search(r"=(\w+:)?//|\.\.", path):
        return 404, "There is nothing here. The page is at /."
    return None


class _BodyTimeout(Exception):
    """The body of a request did not arrive in time."""


def _with_timeout(receive: Receive, timeout_s: float) -> Receive:
    """Limit the wait for each part of the body; uvicorn has no such timeout."""
    is_complete = False

    async def timed() -> Message:
        nonlocal is_complete
        try:  # after the body, the next message is the disconnect, which may come at any time
            message = await (receive() if is_complete else asyncio.wait_for(receive(), timeout_s))
        except TimeoutError:
            raise _BodyTimeout from None
        is_complete = is_complete or not message.get("more_body", False)
        return message

    return timed


class _Response:
    """Adds the security headers to a response; the policy of the page allows exactly the scripts that it contains."""

    def __init__(self, send: Send, *, is_page: bool) -> None:
        self._send, self._is_page = send, is_page
        self._start: Message | None = None
        self._body = b""
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and self._is_page:
            self._start = message
        elif self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._send_start(self._start, scripts_policy(self._body))
                self._start = None
                await self._send({"type": "http.response.body", "body": self._body})
        elif message["type"] == "http.response.start":
            await self._send_start(message, _POLICY.format(scripts=""))
        else:
            await self._send(message)

    async def _send_start(self, message: Message, policy: str) -> None:
        self.started = True
        security = {**_HEADERS, "content-security-policy": policy}
        added = [(name.encode(), value.encode()) for name, value in security.items()]
        others = [(name, value) for name, value in message.get("headers", []) if name.lower().decode() not in security]
        await self._send({**message, "headers": [*others, *added]})


def scripts_policy(page: bytes) -> str:
    """Build a content security policy that allows only the inline scripts of a page, by their hashes.

    Attributes such as onerror do not run, and nothing is loaded from another host.
    """
    hashes = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in _SCRIPT.findall(page) if text]
    return _POLICY.format(scripts="".join(f" 'sha256-{digest}'" for digest in hashes))


async def _read_body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return body
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body again and then the messages that follow it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


async def _respond(send: Send, status: int, text: str) -> None:
    body = (text + "\n").encode()
    headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), "connection": "close"}
    pairs = [(name.encode(), value.encode()) for name, value in {**_HEADERS, **headers}.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
