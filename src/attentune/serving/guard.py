"""Who may use the server: allowed hosts, origin, API key, body size and time, response headers; errors as JSON.

Any web site that its user visits can reach a server on a loopback address: by a cross-origin request, or under a host
name of the site's own that resolves to 127.0.0.1 (DNS rebinding). Starlette checks the Host header and the size of the
body; `Guard` adds what it lacks.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from attentune.errors import ConfigError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY_VARIABLE = "ATTENTUNE_API_KEY"
_MIN_KEY = 16
# What needs no key: the page, which asks for it, the health check, and the description of the API.
_OPEN = ("/", "/health", "/docs", "/openapi.json")
_OPEN_FOLDER = "/static-offline-docs/"
_POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
BODY_TIMEOUT_S = 30.0
_SCRIPT = re.compile(rb"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL | re.IGNORECASE)
_PAGES = ("/", "/docs")
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def limited(app: App, *, hosts: Iterable[str] | None, body_bytes: int) -> App:
    """Wrap an application in Starlette's checks of the host and of the size of the body."""
    from starlette.middleware.body_limit import RequestBodyLimitMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    app = RequestBodyLimitMiddleware(app, max_body_size=body_bytes)
    return app if hosts is None else TrustedHostMiddleware(app, allowed_hosts=allowed_hosts(hosts), www_redirect=False)


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


class Guard:
    """Refuses requests without the API key, cross-origin requests and stalled bodies; see `Response` for the rest.

    CORS middleware does not refuse requests: it only hides the response of a cross-origin request that has already run.
    The response to a refused request is one sentence with status 401, 403 or 408. The key is checked before the body is
    read.
    """

    def __init__(
        self,
        app: App,
        *,
        api_key: str | None = None,
        messages: Mapping[int, str] | None = None,
        count: Callable[[Scope, int, float], None] = lambda scope, status, seconds: None,
        body_timeout_s: float = BODY_TIMEOUT_S,
    ) -> None:
        self._app, self._messages, self._count, self._body_timeout_s = app, messages or {}, count, body_timeout_s
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the server uses no web sockets
            await send({"type": "websocket.close", "code": 1008})
            return
        began, path = time.perf_counter(), scope["path"]
        response = Response(send, self._messages, is_page=path in _PAGES)
        try:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            if (refusal := self._refusal(path, headers)) is not None:
                await response.refuse(*refusal)
            else:
                await self._app(scope, _with_timeout(receive, self._body_timeout_s), response)
        except BodyTimeoutError as error:
            if not response.started:
                await response.refuse(408, str(error))
        finally:
            self._count(scope, response.status, time.perf_counter() - began)

    def _refusal(self, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Return the status and the reason if the request line or headers are refused."""
        if self._key is not None and path not in _OPEN and not path.startswith(_OPEN_FOLDER):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            given = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
            # compare_digest takes as long for a wrong key as for the right one.
            if not hmac.compare_digest(given.encode("latin-1"), self._key):
                return 401, (
                    f"The API key is {'wrong' if given else 'missing'}. Send the key that the server was started with"
                    " in the header Authorization: Bearer KEY, or X-API-Key: KEY."
                )
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return 403, (
                f"The request comes from a page of {origin[:200]}, expected one of {host[:200]}. Open this page by its"
                " own address."
            )
        return None


class BodyTimeoutError(Exception):
    """The body of a request did not arrive in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The rest of the request did not arrive within {timeout_s:g} s. Send it again.")


def _with_timeout(receive: Receive, timeout_s: float) -> Receive:
    """Limit the wait for each part of the body; uvicorn has no such timeout."""
    is_complete = False

    async def timed() -> Message:
        nonlocal is_complete
        # After the body, the next message is the disconnect, which may come at any time. `asyncio.wait_for` of Python
        # 3.11 loses a cancellation that comes with the message; the request would then wait for its client for ever.
        try:
            async with asyncio.timeout(None if is_complete else timeout_s):
                message = await receive()
        except TimeoutError:
            raise BodyTimeoutError(timeout_s) from None
        is_complete = is_complete or not message.get("more_body", False)
        return message

    return timed


class Response:
    """Adds the security headers, a content security policy to pages, and turns errors in plain text into JSON.

    The parts of a page and of such an error are held back until it is complete. The policy allows exactly the scripts
    that a page contains.
    """

    def __init__(self, send: Send, messages: Mapping[int, str], *, is_page: bool = False) -> None:
        self._send, self._messages, self._is_page = send, messages, is_page
        self._start: Message | None = None
        self._body = b""
        self.started, self.status, self._is_error = False, 500, False

    async def refuse(self, status: int, reason: str) -> None:
        """Send an error of one sentence, and close the connection."""
        headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": reason.encode()})

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            is_text = dict(message.get("headers", ())).get(b"content-type", b"").startswith(b"text/plain")
            self._is_error = self.status >= 400 and is_text
            if self._is_page or self._is_error:
                self._start = message
            else:
                await self._send_start(message)
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._send_start(self._start)
                await self._send({"type": "http.response.body", "body": self._body})

    async def _send_start(self, message: Message) -> None:
        self.started = True
        added = {**HEADERS, "content-security-policy": scripts_policy(self._body)}
        if self._is_error:
            detail = self._messages.get(self.status) or self._body.decode().strip()
            self._body = json.dumps({"detail": detail}).encode()
            added |= {"content-type": "application/json", "content-length": str(len(self._body))}
            added |= {"www-authenticate": "Bearer"} if self.status == 401 else {}
        others = [(name, value) for name, value in message.get("headers", ()) if name.lower().decode() not in added]
        await self._send({**message, "headers": [*others, *((k.encode(), v.encode()) for k, v in added.items())]})


def scripts_policy(page: bytes) -> str:
    """Build a content security policy that allows only the inline scripts of a page, by their hashes.

    Attributes such as onerror do not run, and nothing is loaded from another host.
    """
    hashes = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in _SCRIPT.findall(page) if text]
    return _POLICY.format(scripts="".join(f" 'sha256-{digest}'" for digest in hashes))
