"""Protection of the page's server beyond `serving.guard`: its routes, the files that requests name, its own scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from attentune.serving.guard import App, Guard, GuardedResponse, Message, PageResponse, Receive, Scope, Send, respond
from attentune.serving.guard import protect as protect_server

# The routes that the page uses: its own (`app.endpoints`) and some of Gradio's. Gradio has no option to disable its
# others, such as API calls and deep links.
_GET = re.compile(
    r"/|/report|/config/?|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt|/(assets|static|svelte)/.+"
    r"|/gradio_api/(info|app_id|startup-events|theme\.css|upload_progress|queue/(data|status)|file=.+)/?"
)
_POST = re.compile(r"/mask|/gradio_api/(queue/join|upload|cancel|reset)/?")
_REPORT = "/report"
_JOIN = "/gradio_api/queue/join"
# Gradio's front end compiles its templates at run time, hence 'unsafe-eval'; scripts in a text remain forbidden.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self'"
    " data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self';"
    " frame-ancestors 'none'"
)
# The report is shown in a frame of the page. It runs its own script only, without access to the page or its server.
_REPORT_POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'unsafe-inline'; img-src data:; font-src data:; base-uri"
    " 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)


def protect(app: App, *, hosts: Iterable[str], uploads: Path, body_bytes: int) -> App:
    """Wrap an ASGI application in all checks."""
    return protect_server(SecurityMiddleware(app, uploads=uploads), hosts=hosts, body_bytes=body_bytes)


class SecurityMiddleware(Guard):
    """A guard that also refuses unused routes and names of other files (status 404 and 403)."""

    def __init__(self, app: App, *, uploads: Path, **options: Any) -> None:
        super().__init__(app, **options)
        self._uploads = uploads.resolve()

    def refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Return the status and the reason if the request line or headers are refused."""
        refused = super().refusal(scope, headers)
        path, allowed = unquote(scope["path"]), {"GET": _GET, "HEAD": _GET, "POST": _POST}.get(scope["method"])
        if refused is None and (allowed is None or not allowed.fullmatch(path) or re.search(r"=(\w+:)?//|\.\.", path)):
            return 404, "There is nothing here. The page is at /."
        return refused

    def response(self, scope: Scope, send: Send) -> GuardedResponse:
        """Return what sends the response to a request, with the security headers."""
        if scope["path"] == _REPORT:
            return PageResponse(send, policy=_REPORT_POLICY, is_page=True, headers={"x-frame-options": "SAMEORIGIN"})
        return PageResponse(send, policy=_POLICY, is_page=scope["path"] == "/")

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer, unless the body names other files."""
        if scope["path"].rstrip("/") == _JOIN:
            body = await _read_body(receive)
            if not self._names_uploads_only(body):
                await respond(send, 403, "The request names a file that was not uploaded here. Upload it first.")
                return
            receive = _replay(body, receive)
        await super().forward(scope, receive, send)

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
