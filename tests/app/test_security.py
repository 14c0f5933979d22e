"""The checks around the page and its own addresses, without Gradio and without a socket: `test_server` has both."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.testclient import TestClient

from attentune.app.endpoints import MOST_WAITING, add_endpoints
from attentune.app.limits import RequestLimits
from attentune.app.report_page import ReportPage
from attentune.app.security import protect
from attentune.app.service import ExplanationService
from helpers.explain_runs import TEXTS, tiny_run

Tiny = Callable[..., Path]
LIMITS = RequestLimits(characters=50_000, upload_bytes=100_000, rows=50)
JOIN = "/gradio_api/queue/join"


@pytest.fixture(scope="module")
def service(tiny: Tiny) -> ExplanationService:
    return ExplanationService([("mine", tiny_run(tiny()))], limits=LIMITS)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReportPage:
    def build(file: Path) -> None:
        file.write_text("<!doctype html><title>Report</title><script>sorted()</script>")

    return ReportPage(tmp_path_factory.mktemp("report") / "report.html", build)


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uploads")


@pytest.fixture(scope="module")
def client(service: ExplanationService, report: ReportPage, uploads: Path) -> Iterator[TestClient]:
    """A client of the page's own addresses, and of stand-ins for those of Gradio, in all checks."""
    app = Starlette()
    add_endpoints(app, service, report)

    async def page(request: Request) -> Response:
        return HTMLResponse("<script>ours()</script>")

    async def joined(request: Request) -> Response:
        return PlainTextResponse(await request.body())

    app.add_route("/", page)
    app.add_route(JOIN, joined, methods=["POST"])
    guarded = protect(app, hosts=["lab-3.example.org"], uploads=uploads, body_bytes=LIMITS.body_bytes)
    with TestClient(guarded, base_url="http://localhost", follow_redirects=False) as found:
        yield found


@pytest.mark.parametrize("path", ["/", "/report", JOIN, "/mask"])
def test_hosts_and_origins(client: TestClient, path: str) -> None:
    method = "GET" if path in ("/", "/report") else "POST"
    for host in ("evil.example", "localhost.evil.example", "evil.example@localhost", "", "127.0.0.2"):
        answer = client.request(method, path, headers={"Host": host})
        assert (answer.status_code, answer.text) == (400, "Invalid host header")
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", ""):
        answer = client.request(method, path, headers={"Origin": origin})
        assert answer.status_code == 403
        assert "Open this page by its own address." in answer.text
    for host in ("localhost:9000", "[::1]", "Lab-3.Example.org:7860"):
        assert client.request(method, path, headers={"Host": host}).status_code in (200, 400, 404)
        assert client.request(method, path, headers={"Host": host}).text != "Invalid host header"


@pytest.mark.parametrize("path", ["/gradio_api/run/explain", "/docs", "/report/x", "/masked", "/static/../../x", "/x"])
def test_what_the_page_does_not_use_is_not_there(client: TestClient, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        answer = client.request(method, path)
        assert (answer.status_code, answer.text) == (404, "There is nothing here. The page is at /.\n")
    assert client.get("/mask").status_code == client.post("/report").status_code == 404


def test_only_uploaded_files_may_be_named(client: TestClient, uploads: Path) -> None:
    for path in ("/etc/passwd", "../x", "http://127.0.0.1:1/x.csv", f"{uploads}/../x"):
        answer = client.post(JOIN, json={"data": [[{"a": {"path": path}}]]})
        assert (answer.status_code, answer.text) == (
            403,
            "The request names a file that was not uploaded here. Upload it first.\n",
        )
    assert client.post(JOIN, json={"data": [{"path": str(uploads / "a.csv")}]}).status_code == 200


def test_too_much_is_refused(client: TestClient) -> None:
    for path in (JOIN, "/mask"):
        assert client.post(path, content=b"x" * (LIMITS.body_bytes + 1)).status_code == 413


def test_the_page_runs_its_own_scripts_only(client: TestClient) -> None:
    headers = client.get("/").headers
    policy = headers["content-security-policy"]
    assert policy.count("'sha256-") == 1
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")


# Masked words


def test_words_are_masked(client: TestClient, service: ExplanationService) -> None:
    words = [("text", 4, 10), ("text", 0, 3)]
    answer = client.post("/mask", json={"text": TEXTS[0], "pair": None, "words": words})
    assert (answer.status_code, answer.json()) == (200, {"predictions": service.mask(TEXTS[0], "", words)})


def asked(text: Any = "yes", pair: Any = None, words: Any = ()) -> dict[str, Any]:
    return {"text": text, "pair": pair, "words": words}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"content": b""}, "The request is not of the expected form (JSONDecodeError): expected {"),
        ({"content": b"\xff"}, "The request is not of the expected form (UnicodeDecodeError)"),
        ({"content": b"[" * 100_000}, "The request is not of the expected form (RecursionError)"),
        ({"json": []}, "The request is not of the expected form (TypeError)"),
        ({"json": {"text": "yes"}}, "The request is not of the expected form (KeyError)"),
        ({"json": asked(words=7)}, "The request is not of the expected form (TypeError)"),
        ({"json": asked(words=[["text", 0]])}, "The request is not of the expected form (ValueError)"),
        ({"json": asked(7)}, "The texts are not strings"),
        ({"json": asked(pair=["a"])}, "The texts are not strings"),
        ({"json": asked(words=[["text", 0, 4]])}, "A word is not within the text"),
        ({"json": asked(words=[["text", 2, 2]])}, "A word is not within the text"),
        ({"json": asked(words=[["text", -2, 2]])}, "A word is not within the text"),
        ({"json": asked(words=[["pair", 0, 1]])}, "A word is not within the text"),
        ({"json": asked(words=[[["text"], 0, 1]])}, "A word is not within the text"),
        ({"json": asked(words=[["text", 0, True]])}, "A word is not within the text"),
        ({"json": asked(words=[["text", 0, 1]] * 1001)}, "1,001 words are masked; this page accepts at most 1,000."),
        ({"json": asked(" ")}, "There is no text yet."),
        ({"json": asked("x" * 50_001)}, "The text has 50,001 characters; this page accepts at most 50,000."),
        ({"content": b'{"text": "\\ud83d", "pair": null, "words": []}'}, "the text: row 0 holds half of a surrogate"),
    ],
)
def test_mask_requests_that_no_page_sends_get_a_sentence(client: TestClient, body: Any, expected: str) -> None:
    answer = client.post("/mask", **body)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    assert answer.json()["problem"].startswith(expected)


def test_a_bug_of_ours_is_a_sentence(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attentune.app.service.answer_masked", lambda *_, **__: {}["what only we should see"])
    assert client.post("/mask", json=asked()).json()["problem"].startswith("Internal error: this is a bug in Attentune")
    assert "KeyError: 'what only we should see'" in capfd.readouterr().err


def test_mask_requests_beyond_the_limit_are_refused(
    client: TestClient, service: ExplanationService, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, more = threading.Event(), 4

    def slow(text: str, pair: str, words: Any) -> list[str]:
        assert go_on.wait(60)
        return []

    monkeypatch.setattr(service, "mask", slow)
    answers: list[tuple[int, Any]] = []

    def ask() -> None:
        answer = client.post("/mask", json=asked())
        answers.append((answer.status_code, answer.json()))

    visitors = [threading.Thread(target=ask) for _ in range(MOST_WAITING + more)]
    for visitor in visitors:
        visitor.start()
    try:
        for _ in range(1200):
            if len(answers) == more:
                break
            time.sleep(0.05)
        assert answers == [(503, {"problem": "Too many requests are waiting. Try again in a moment."})] * more
    finally:
        go_on.set()
        for visitor in visitors:
            visitor.join(60)
    assert answers[more:] == [(200, {"predictions": []})] * MOST_WAITING


# The report


def test_the_report_is_for_a_sandboxed_frame_of_the_page(client: TestClient, report: ReportPage) -> None:
    answer = client.get("/report")
    assert (answer.status_code, answer.text) == (404, "There is no report yet. Open the tab Report of the page.\n")
    report.html()
    answer = client.get("/report")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.text.startswith("<!doctype html>")
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"
    policy = answer.headers["content-security-policy"]
    assert "frame-ancestors 'self'; sandbox allow-scripts" in policy
    assert "default-src 'none'" in policy
    assert len(re.findall("'sha256-", policy)) == 1
