"""The page's own addresses beside those of Gradio: predictions with masked words as JSON, and the report."""

from __future__ import annotations

import json
import threading
from typing import Any

from attentune.app.report_page import ADDRESS, ReportPage
from attentune.app.service import ExplanationService, handle_errors
from attentune.errors import DataError

MASK = "/mask"
MOST_WORDS = 1000
MOST_WAITING = 64
_FORM = 'expected {"text": TEXT, "pair": TEXT or null, "words": [["text" or "pair", START, END], ...]}.'


def add_endpoints(app: Any, service: ExplanationService, report: ReportPage | None) -> None:
    """Add the addresses to a Starlette application.

    `POST /mask` returns `{"predictions": [HTML of each run]}`, or `{"problem": SENTENCE}` with status 400, or 503 if
    too many requests wait.
    """
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

    waiting = threading.BoundedSemaphore(MOST_WAITING)

    async def mask(request: Request) -> Response:
        body = await request.body()
        if not waiting.acquire(blocking=False):
            return JSONResponse({"problem": "Too many requests are waiting. Try again in a moment."}, 503)
        try:
            answer = await run_in_threadpool(_masked, service, body)
        finally:
            waiting.release()
        return JSONResponse(answer, 400 if "problem" in answer else 200)

    async def show_report(request: Request) -> Response:
        if report is None or not report.file.is_file():
            return PlainTextResponse("There is no report yet. Open the tab Report of the page.\n", 404)
        return FileResponse(report.file, media_type="text/html; charset=utf-8")

    app.add_route(MASK, mask, methods=["POST"])
    app.add_route(ADDRESS, show_report, methods=["GET"])


def _masked(service: ExplanationService, body: bytes) -> dict[str, Any]:
    def answer() -> dict[str, Any]:
        text, pair, words = read_mask_request(body)
        return {"predictions": service.mask(text, pair, words)}

    return handle_errors(lambda problem: {"problem": problem}, as_html=False)(answer)()


def read_mask_request(body: bytes) -> tuple[str, str, list[tuple[str, int, int]]]:
    """Read and check the body of `POST /mask`: the text, the second text, and the spans of the masked words."""
    try:
        content = json.loads(body)
        text, pair, words = content["text"], content["pair"], content["words"]
        spans = [(within, start, end) for within, start, end in words]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"The request is not of the expected form ({type(error).__name__}): {_FORM}") from None
    if not isinstance(text, str) or not isinstance(pair, str | None):
        raise DataError(f"The texts are not strings: {_FORM}")
    if len(spans) > MOST_WORDS:
        raise DataError(f"{len(spans):,} words are masked; this page accepts at most {MOST_WORDS:,}.")
    sides = {"text": text, "pair": pair or ""}
    for within, start, end in spans:
        is_span = isinstance(within, str) and within in sides and type(start) is int and type(end) is int
        if not is_span or not 0 <= start < end <= len(sides[within]):
            raise DataError(f"A word is not within the text: {_FORM}")
    return text, pair or "", spans
