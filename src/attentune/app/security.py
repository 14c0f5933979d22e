"""Who may ask the server, for what, and how much: a layer in front of everything else that it serves.

A page that listens on loopback can still be reached by any web site that its user visits: by a request across origins,
or under a name of the site's own that is made to point to 127.0.0.1 (DNS rebinding). So the Host header must name this
machine, and the Origin header, where there is one, this very page.
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

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# What the page itself asks for. The rest of Gradio's routes (fetching from other hosts, among them) is not served.
_GET = re.compile(
    r"/|/config/?|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt|/(assets|static|svelte)/.+"
    r"|/gradio_api/(info|app_id|startup-events|theme\.css|upload_progress|queue/(data|status)|heartbeat/[\w-]+|file=.+)/?"
)
_POST = re.compile(r"/gradio_api/(queue/join|upload|cancel|reset)/?")
_JOIN = "/gradio_api/queue/join"
_SCRIPT = re.compile(rb"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL | re.IGNORECASE)
# Gradio's page makes functions of its own templates, for which 'unsafe-eval' stands; scripts in a text stay forbidden.
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


class SecurityMiddleware:
    """Answers 403, 404, 408 or 413 with one clear sentence, or lets a request through to `app`.

    Args:
        app: an ASGI application.
        hosts: names under which it may be asked for, without ports; any case; those of loopback always may.
        uploads: the folder of uploaded files; a request may name no other file.
        body_bytes: the most that a request may send.
        body_s: the longest wait for the next part of a request, in seconds.
    """

    def __init__(self, app: App, *, hosts: Iterable[str], uploads: Path, body_bytes: int, body_s: float = 30.0) -> None:
        self._app, self._uploads, self._body_bytes, self._body_s = app, uploads.resolve(), body_bytes, body_s
        self._hosts = {host_name(host) for host in (*LOOPBACK, *hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":  # the page uses no web sockets
            await send({"type": "websocket.close", "code": 1008})
        else:
            refused = self._refusal(scope)
            if refused is not None:
                await _answer(send, *refused)
            else:
                await self._pass_on(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Why a request is not let through, by what its head says."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        names = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"]
        host, origin = headers.get("host", ""), headers.get("origin")
        if len(names) != 1 or host_name(host) not in self._hosts:
            return 403, (
                f"This page was asked for as {', '.join(names)[:200] or 'no host at all'}, expected one of"
                f" {', '.join(sorted(self._hosts))}. If that name is yours, start the page with --allowed_hosts NAME."
            )
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, (
                f"A page of {origin[:200]} asked for this, expected one of {host[:200]}. Open this page by its own"
                " address."
            )
        path, wanted = unquote(scope["path"]), {"GET": _GET, "HEAD": _GET, "POST": _POST}.get(scope["method"])
        if wanted is None or not wanted.fullmatch(path) or re.search(r"=(\w+:)?//|\.\.", path):
            return 404, "There is nothing here. The page is at /."
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._body_bytes:
            return 413, self._too_much()
        return None

    def _too_much(self) -> str:
        return f"The request sends too much, expected at most {self._body_bytes / 2**20:.1f} MB. Send less at once."

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        out = _Response(send, is_page=scope["path"] == "/")
        if scope["path"].rstrip("/") != _JOIN:
            try:
                await self._app(scope, self._counted(receive), out)
            except (_TooMuch, _TooSlow) as refused:
                if not out.began:
                    await _answer(send, *self._stopped(refused))
            return
        try:
            body = await _whole(self._counted(receive))
        except (_TooMuch, _TooSlow) as refused:
            await _answer(send, *self._stopped(refused))
            return
        if not self._names_uploads_only(body):
            await _answer(send, 403, "The request names a file that was not uploaded here. Upload it first.")
            return
        await self._app(scope, _replayed(body, receive), out)

    def _stopped(self, refused: Exception) -> tuple[int, str]:
        if isinstance(refused, _TooMuch):
            return 413, self._too_much()
        return 408, f"The rest of the request did not come in {self._body_s:g} s. Ask again."

    def _counted(self, receive: Receive) -> Receive:
        """The same messages, until they are more than a request may send (whatever its head said), or stop coming."""
        got, is_whole = 0, False

        async def counted() -> Message:
            nonlocal got, is_whole
            try:  # after the whole body, what comes is the end of the visit, and may take as long as it likes
                message = await (receive() if is_whole else asyncio.wait_for(receive(), self._body_s))
            except TimeoutError:
                raise _TooSlow from None
            got += len(message.get("body", b""))
            is_whole = is_whole or not message.get("more_body", False)
            if got > self._body_bytes:
                raise _TooMuch
            return message

        return counted

    def _names_uploads_only(self, body: bytes) -> bool:
        """Whether every file that this JSON names lies in the folder of uploads."""
        try:
            found: list[Any] = [json.loads(body)]
        except (ValueError, RecursionError):
            return True  # the application says what is wrong with it
        while found:
            part = found.pop()
            if isinstance(part, list):
                found += part
            elif isinstance(part, dict):
                found += part.values()
                if isinstance(part.get("path"), str) and not self._is_upload(part["path"]):
                    return False
        return True

    def _is_upload(self, path: str) -> bool:
        try:
            return Path(path).resolve().is_relative_to(self._uploads)
        except (OSError, ValueError):
            return False


class _TooMuch(Exception):
    """A request sends more than it may."""


class _TooSlow(Exception):
    """A request stops in the middle."""


class _Response:
    """Passes an answer on with headers of ours; of the page itself, scripts that came with it are the only ones."""

    def __init__(self, send: Send, *, is_page: bool) -> None:
        self._send, self._is_page = send, is_page
        self._start: Message | None = None
        self._body = b""
        self.began = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and self._is_page:
            self._start = message
        elif self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._head(self._start, scripts_policy(self._body))
                self._start = None
                await self._send({"type": "http.response.body", "body": self._body})
        elif message["type"] == "http.response.start":
            await self._head(message, _POLICY.format(scripts=""))
        else:
            await self._send(message)

    async def _head(self, message: Message, policy: str) -> None:
        self.began = True
        own = {**_HEADERS, "content-security-policy": policy}
        added = [(name.encode(), value.encode()) for name, value in own.items()]
        kept = [(name, value) for name, value in message.get("headers", []) if name.lower().decode() not in own]
        await self._send({**message, "headers": [*kept, *added]})


def scripts_policy(page: bytes) -> str:
    """A content security policy that lets a page run the scripts that it was served with, by their hashes, no others.

    Attributes such as onerror do not run, and nothing is fetched from another host.
    """
    hashes = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in _SCRIPT.findall(page) if text]
    return _POLICY.format(scripts="".join(f" 'sha256-{digest}'" for digest in hashes))


def host_name(host: str) -> str:
    """The name in a Host header, without its port; IPv6 addresses in brackets, as headers have them."""
    host = host.strip().lower()
    if host.count(":") > 1 and not host.startswith("["):
        return f"[{host}]"
    return re.sub(r":\d*$", "", host)


async def _whole(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return body
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


def _replayed(body: bytes, receive: Receive) -> Receive:
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return parts.pop() if parts else await receive()

    return replayed


async def _answer(send: Send, status: int, text: str) -> None:
    body = (text + "\n").encode()
    headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), "connection": "close"}
    pairs = [(name.encode(), value.encode()) for name, value in {**_HEADERS, **headers}.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
