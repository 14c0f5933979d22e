"""The page's server as a stranger meets it: over HTTP, with requests that no browser of its user would send."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from attentune.app.limits import RequestLimits
from attentune.app.service import PREDICTED, ExplanationService
from attentune.errors import ConfigError
from attentune.inference.predictions import predictions_csv
from attentune.inference.predictor import Predictor, predict_rows
from attentune.serving.guard import allowed_hosts, host_name
from attentune.serving.server import address, bound_socket
from helpers.app_server import Served, serving
from helpers.explain_runs import TEXTS, tiny_run
from helpers.hostile_texts import HOSTILE
from helpers.tiny_models import rows_of

Tiny = Callable[..., Path]
pytestmark = pytest.mark.integration  # starting Gradio takes seconds; test_security and test_visit are quick
LIMITS = RequestLimits(characters=50_000, upload_bytes=100_000, rows=50)
OPTIONS = ("ssa", "word", PREDICTED)


@pytest.fixture(scope="module")
def looked_up() -> Iterator[set[str]]:
    """The hosts that the server's process looks up, from before it starts."""
    names: set[str] = set()
    ask = socket.getaddrinfo

    def noted(host: Any, *options: Any, **more: Any) -> Any:
        names.add(str(host))
        return ask(host, *options, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", noted)
        yield names


@pytest.fixture(scope="module")
def served(tiny: Tiny, looked_up: set[str]) -> Iterator[Served]:
    service = ExplanationService([("mine", tiny_run(tiny()))], limits=LIMITS)
    with serving(service, hosts=["lab-3.example.org"], build_report=build_report) as found:
        yield found


def build_report(file: Path) -> None:
    file.write_text("<!doctype html><title>Report</title><script>sorted()</script>")


def message_of(html: str) -> str:
    """The text of a message for the user; fails where there is something else."""
    (text,) = re.findall(r'<div class="att"><div class="att-message" role="alert">([^<]*)</div></div>', html)
    return unescape(text)


# Who may ask


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "LOCALHOST", "[::1]", "lab-3.example.org", "Lab-3.Example.org:7860", "localhost:9000"],
)
def test_hosts_that_are_this_machine(served: Served, host: str) -> None:
    assert served.ask("GET", "/config", headers={"Host": host})[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example@localhost",
     "localhost:1@evil.example", "", "0.0.0.0", "[::2]", "127.0.0.2", "local host", "localhost, evil.example"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/gradio_api/queue/join", "/mask", "/report"])
def test_other_hosts_are_refused(served: Served, host: str, path: str) -> None:
    method = "GET" if path in ("/", "/report") else "POST"
    status, headers, body = served.ask(method, path, headers={"Host": host})
    assert (status, body) == (400, b"Invalid host header")
    assert headers["content-type"] == "text/plain; charset=utf-8"


def raw(served: Served, request: str) -> bytes:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(request.replace("\n", "\r\n").encode())
        found = b""
        while part := connection.recv(65536):
            found += part
        return found


def test_no_host_and_two_hosts_are_refused(served: Served) -> None:
    assert raw(served, "GET / HTTP/1.0\n\n").split()[1] == b"400"
    for hosts in ("Host: localhost\nHost: evil.example", "Host: evil.example\nHost: localhost"):
        assert raw(served, f"GET / HTTP/1.1\n{hosts}\nConnection: close\n\n").split()[1] == b"400"


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1:1", "file://", ""]
)
def test_other_origins_are_refused(served: Served, origin: str) -> None:
    requests = (
        ("POST", "/gradio_api/queue/join"), ("GET", "/config"), ("POST", "/gradio_api/upload"), ("POST", "/mask"),
        ("GET", "/report"),
    )  # fmt: skip
    for method, path in requests:
        status, _, body = served.ask(method, path, headers={"Origin": origin})
        assert status == 403
        assert "Open this page by its own address." in body.decode()


def test_the_page_itself_may_ask(served: Served) -> None:
    assert served.ask("GET", "/config", headers={"Origin": served.url.rstrip("/")})[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/proxy=http://127.0.0.1:1/x", "/gradio_api/file=http://127.0.0.1:1/x", "/gradio_api/file=//host/x",
     "/gradio_api/component_server", "/gradio_api/run/explain", "/gradio_api/api/explain", "/gradio_api/call/explain",
     "/gradio_api/runs", "/gradio_api/run-history/buckets", "/gradio_api/deep_link?session_hash=x", "/docs",
     "/openapi.json", "/gradio_api/openapi.json", "/login", "/logout", "/monitoring/x", "/gradio_api/dev/reload",
     "/static/../../../etc/passwd", "/static/%2e%2e/%2e%2e/x", "/gradio_api/stream/x/y/1/playlist.m3u8", "/nothing"],
)  # fmt: skip
def test_what_the_page_does_not_use_is_not_there(served: Served, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        status, _, body = served.ask(method, path)
        assert (status, body) == (404, b"There is nothing here. The page is at /.\n"), method


@pytest.mark.parametrize("path", ["/etc/passwd", "pyproject.toml", "../../etc/passwd", "/proc/self/environ"])
def test_no_file_of_the_machine_can_be_had(served: Served, path: str) -> None:
    status, _, body = served.ask("GET", f"/gradio_api/file={path}")
    assert status in (403, 404)
    assert b"root:" not in body
    given = {"path": path, "meta": {"_type": "gradio.FileData"}}
    request = {"data": [given, "", "", False], "fn_index": served.functions["predict"], "session_hash": "x"}
    status, _, body = served.ask("POST", "/gradio_api/queue/join", request)
    assert (status, body) == (403, b"The request names a file that was not uploaded here. Upload it first.\n")


def test_an_address_in_the_place_of_a_file_is_not_fetched(served: Served) -> None:
    given = {"path": "http://127.0.0.1:1/x.csv", "meta": {"_type": "gradio.FileData"}}
    request = {"data": [given, "", "", False], "fn_index": served.functions["predict"], "session_hash": "x"}
    assert served.ask("POST", "/gradio_api/queue/join", request)[0] == 403


def test_too_much_is_refused_by_its_head_and_by_what_comes(served: Served) -> None:
    too_much = served.service.limits.body_bytes + 1
    assert (
        "413 "
        in raw(
            served,
            f"POST /gradio_api/queue/join HTTP/1.1\nHost: localhost\nConnection: close\nContent-Length: {too_much}\n\n",
        ).decode()
    )
    for path in ("/gradio_api/queue/join", "/gradio_api/upload", "/mask"):
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.csv"\r\n\r\n'
        pieces = itertools.chain([head], (b"x" * 65536 for _ in range(too_much // 65536 + 2)))
        headers = {"Content-Type": "multipart/form-data; boundary=x"} if "upload" in path else {}
        try:
            connection.request("POST", path, pieces, headers, encode_chunked=True)
            assert connection.getresponse().status == 413
        except (BrokenPipeError, ConnectionResetError):
            pass  # it did not wait for the end
        finally:
            connection.close()
    assert served.ask("GET", "/config")[0] == 200


# What is served


def test_the_page_names_no_other_host_and_runs_its_own_scripts_only(served: Served) -> None:
    status, headers, body = served.ask("GET", "/")
    assert status == 200
    page = body.decode()
    fetched = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="([^"]*)"', page)
    assert fetched
    assert [address for address in fetched if "//" in address] == []
    policy = headers["content-security-policy"]
    assert policy.count("'sha256-") == len(re.findall(r"<script[^>]*>(?!</script>)", page))
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
    assert "connect-src 'self'" in policy
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
    assert "server" not in headers or "uvicorn" in headers["server"]
    theme = served.ask("GET", "/theme.css")[2].decode()
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\((?![\"']?data:)", theme)
    config = json.loads(served.ask("GET", "/config")[2])
    assert (config["analytics_enabled"], config["footer_links"]) == (False, [])
    assert not config.get("run_history")


def test_no_other_host_is_looked_up(served: Served, looked_up: set[str]) -> None:
    served.call("explain", TEXTS[0], "", *OPTIONS)
    time.sleep(0.5)
    assert looked_up == {"127.0.0.1"}


def test_an_address_of_ipv6_has_brackets() -> None:
    assert [host_name(host) for host in ("::1", "[::1]", "[::1]:7860", "A.example:80", "a")] == [
        "[::1]", "[::1]", "[::1]", "a.example", "a",
    ]  # fmt: skip
    if socket.has_ipv6:
        with contextlib.suppress(ConfigError), bound_socket("::1", 0) as listener:
            assert address(listener) == f"http://[::1]:{listener.getsockname()[1]}/"


def test_the_second_part_of_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    with bound_socket("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_wildcards_are_for_subdomains_only() -> None:
    assert allowed_hosts(["*.Example.org:80"]) == ["localhost", "127.0.0.1", "[::1]", "*.example.org"]
    for name in ("*", "*.*", "a*.example.org", "*example.org"):
        with pytest.raises(ConfigError, match=rf"--allowed_hosts {re.escape(name)}: expected host names such as"):
            allowed_hosts([name])


def test_head_is_answered(served: Served) -> None:
    assert served.ask("HEAD", "/")[0] == 200


def test_a_text_is_predicted_and_explained(served: Served) -> None:
    html, table, about = served.call("explain", TEXTS[0], "", *OPTIONS)
    assert html == re.sub(r"[\d.e-]+ s<", f"{re.findall(r', ([^ ]+) s<', html)[0]} s<",
                          served.service.explain(TEXTS[0], "", *OPTIONS))  # fmt: skip
    assert (table, about) == ("", "")
    assert served.call("heads", TEXTS[0], "", 1, "token") == [served.service.heads(TEXTS[0], "", 1, "token")]


def test_words_are_masked(served: Served) -> None:
    words = [("text", 4, 10), ("text", 0, 3)]
    assert served.mask(TEXTS[0], None, *words) == {"predictions": served.service.mask(TEXTS[0], "", words)}
    assert "half of a surrogate pair" in served.mask("half \ud83d", None, ("text", 0, 6))["problem"]


def test_the_report_is_for_a_sandboxed_frame_of_the_page(served: Served) -> None:
    assert served.ask("GET", "/report")[0] in (200, 404)
    (html,) = served.call("show")
    assert 'src="/report"' in html
    status, headers, body = served.ask("GET", "/report")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert body.startswith(b"<!doctype html>")
    assert headers["x-frame-options"] == "SAMEORIGIN"
    policy = headers["content-security-policy"]
    assert "frame-ancestors 'self'; sandbox allow-scripts" in policy
    assert policy.count("'sha256-") == 1
    assert "default-src 'none'" in policy


def test_empty_and_long_texts_get_a_message(served: Served) -> None:
    assert message_of(served.call("explain", "", "", *OPTIONS)[0]).startswith("There is no text yet.")
    megabyte = "word " * 200_000
    error = message_of(served.call("explain", megabyte, "", *OPTIONS)[0])
    assert error.startswith("The text has 1,000,000 characters; this page accepts at most 50,000.")
    error = message_of(served.call("heads", "\U0001f600" * 250_000, "", 1, "word")[0])
    assert error.startswith("The text has 250,000 characters")
    # The longest one that is taken.
    html, *_ = served.call("explain", "word " * 10_000, "", *OPTIONS)
    assert re.sub(r"<[^>]*>", "", html).count("word") >= 10_000


@pytest.mark.parametrize("text", [HOSTILE[0], HOSTILE[30], "{{7*7}} ${7*7} `x`", "\x00\ud83d", "\ud83d"])
def test_hostile_texts_come_back_as_text(served: Served, text: str) -> None:
    html = served.call("explain", text, "", *OPTIONS)[0]
    assert not re.search(r"<script|<img|onerror=[^&]|[{}$`]", html)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("yes", "", "no-such-method", "word", PREDICTED), None),
        (("yes", "", "ssa", "word", "no-such-class"), None),
        (("yes", "", ["ssa"], {"a": 1}, 7), None),
        ((7, None, None, None, None), None),
        ((["a"], {}, "ssa", "word", PREDICTED), None),
    ],
)
def test_values_that_no_page_sends_do_no_harm(served: Served, given: tuple[Any, ...], expected: None) -> None:
    request = {"data": list(given), "fn_index": served.functions["explain"], "session_hash": "odd"}
    status, _, _ = served.ask("POST", "/gradio_api/queue/join", request)
    assert status < 500
    _, _, stream = served.ask("GET", "/gradio_api/queue/data?session_hash=odd")
    assert b"Traceback" not in stream
    assert b'File "' not in stream
    assert 'data-word="text:0:3"' in served.call("explain", "yes", "", *OPTIONS)[0]


def test_a_bug_of_ours_is_a_message(
    served: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attentune.app.service.explained_answer", lambda *_, **__: {}["what only we should see"])
    monkeypatch.setattr("attentune.app.service.answer_masked", lambda *_, **__: {}["what only we should see"])
    assert served.mask("yes", None)["problem"].startswith("Internal error: this is a bug in Attentune")
    error = message_of(served.call("explain", "yes", "", *OPTIONS)[0])
    assert error.startswith("Internal error: this is a bug in Attentune, not in your input.")
    assert "KeyError: 'what only we should see'" in capfd.readouterr().err


# Files


def test_a_file_goes_up_and_predictions_come_down(served: Served) -> None:
    content = "text\n" + "".join(f'"{text}"\n' for text in TEXTS)
    html, made = served.call_with_file(served.upload("new.csv", content.encode()))
    assert "5 rows" in html
    assert made["visible"]
    (file,) = made["value"]
    assert file["orig_name"] == "predictions.csv"
    status, headers, body = served.ask(
        "GET", "/" + file["url"].split("/", 3)[3] if "//" in file["url"] else file["url"]
    )
    run, rows = served.service.runs[0][1], rows_of(TEXTS)
    assert (status, body.decode()) == (200, predictions_csv(rows, predict_rows(run, rows), run.label_space))
    assert headers["content-disposition"].startswith("attachment")


def test_files_that_are_not_taken_are_said(served: Served) -> None:
    assert message_of(served.call_with_file(None)[0]).startswith("There is no file yet.")
    html, made = served.call_with_file(served.upload("new.csv", b"text\n" + b"x\n" * 51))
    assert message_of(html).startswith("The file has 51 rows; this page accepts at most 50.")
    assert not made["visible"]
    hostile = served.upload("<img src=x onerror=alert(1)>.csv", b'text\n"')
    assert "the row that begins here opens a double quote" in message_of(served.call_with_file(hostile)[0])
    with pytest.raises(AssertionError, match="413"):
        served.upload("big.csv", b"x" * (LIMITS.upload_bytes + 1))


def test_uploaded_pages_are_not_shown_as_pages(served: Served) -> None:
    path = served.upload("x.html", b"<script>alert(1)</script>")
    status, headers, _ = served.ask("GET", f"/gradio_api/file={path}")
    assert status in (403, 404) or headers["content-disposition"].startswith("attachment")
    assert "'unsafe-inline'" not in headers["content-security-policy"].split("style-src")[0]


def test_the_worst_errors_of_a_file_that_goes_up(served: Served) -> None:
    path = served.upload("new.csv", b"text,label\n" + b"".join(b"yes no,%s\n" % label for label in (b"bad", b"good")))
    given = {"path": path, "meta": {"_type": "gradio.FileData"}}
    (html,) = served.call("of_file", given, "", "", "")
    assert "1 of 2 rows of new.csv is wrong; the worst first" in html
    assert message_of(served.call("of_file", None, "", "", "")[0]).startswith("There is no file yet.")
    (html,) = served.call("of_validation", "")
    assert "does not say what it was trained on" in html  # the run of these tests has no data


# Many at once


@pytest.mark.slow
def test_many_visitors_at_once(served: Served) -> None:
    """16 visitors, 25 questions each: all answered, each with its own answer, and memory does not keep growing."""
    texts = [f"{TEXTS[n % len(TEXTS)]} number {n}" for n in range(16)]
    expected = [re.sub(r", [^ ]+ s<", "", served.service.explain(text, "", *OPTIONS)) for text in texts]
    troubles: list[str] = []

    def visit(number: int, times: int) -> None:
        for turn in range(times):
            try:
                html = served.call("explain", texts[number], "", *OPTIONS)[0]
                if re.sub(r", [^ ]+ s<", "", html) != expected[number]:
                    troubles.append(f"visitor {number} got another's answer")
                assert served.ask("GET", "/config")[0] == 200
                if turn % 5 == 0:
                    served.call_with_file(served.upload("a.csv", b"text\nyes\n"))
            except Exception as error:
                troubles.append(f"visitor {number}: {error!r}")

    def crowd(times: int) -> int:
        visitors = [threading.Thread(target=visit, args=(number, times)) for number in range(16)]
        for visitor in visitors:
            visitor.start()
        for visitor in visitors:
            visitor.join(300)
        return resident_bytes()

    served.functions  # noqa: B018  (asked for once, before the threads)
    warm = crowd(8)  # more than Gradio remembers
    began = time.perf_counter()
    after = crowd(25)
    assert troubles == []
    print(f"{16 * 25} questions in {time.perf_counter() - began:.1f} s, {(after - warm) / 2**20:+.1f} MB")
    assert after - warm < 64 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_run_without_layers_has_a_page(tiny: Any, tmp_path: Path) -> None:
    from attentune.app.server import page_app
    from helpers.ensembles import saved_ensemble

    service = ExplanationService([("both", Predictor.load(saved_ensemble(tmp_path / "run", tiny)))])
    assert service.layers == 0
    assert page_app(service, tmp_path, hosts=(), title="both")
