"""The API in this process: answers, limits, keys and errors."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from attentune.baselines.registry import BaselinePredictor, TfidfLinear
from attentune.config import Config
from attentune.data.dataset import LabelSpace, TextRows
from attentune.errors import ConfigError
from attentune.explain.methods import leave_one_out
from attentune.explain.texts import explain_texts
from attentune.inference.predictor import Predictor, predict
from attentune.serving.api import api_app
from attentune.serving.backend import Row, RunBackend, StoppedError
from attentune.serving.engine import Engine
from attentune.serving.guard import Guard, check_key
from attentune.serving.limits import RequestError, ServerLimits
from helpers.tiny_runs import TEXTS, hooks_of, save_run, saved_ensemble, tiny_run

Tiny = Callable[..., Path]
KEY = "a key-less-than-none".replace(" ", "-")
LIMITS = ServerLimits(texts=8, explain_texts=2, characters=200, rows=50, body_mb=1, timeout_s=20)
MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def run(tiny: Tiny) -> Predictor:
    return tiny_run(tiny())


def client_of(backend: Any, *, base_url: str = "http://localhost", **options: Any) -> TestClient:
    """A client of an API in this process, of a run or a backend; use it as a context manager."""
    backend = RunBackend(backend, name="mine") if isinstance(backend, Predictor) else backend
    app = api_app(backend, **({"limits": LIMITS, "hosts": []} | options))
    return TestClient(app, base_url=base_url, raise_server_exceptions=False, follow_redirects=False)


@pytest.fixture(scope="module")
def client(run: Predictor) -> Iterator[TestClient]:
    with client_of(run) as found:
        yield found


# Answers


_ENSEMBLE = pytest.param("ensemble", marks=pytest.mark.integration)


@pytest.mark.parametrize("kind", ["classification", "pair", "bi-encoder", "regression", _ENSEMBLE])
def test_answers_are_those_of_predict_and_explain(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    saved = Predictor.load(saved_ensemble(tmp_path, tiny)) if kind == "ensemble" else tiny_run(tiny(), kind)
    texts = list(TEXTS)
    pairs = texts[::-1] if saved.is_pair else None
    with client_of(saved) as client:
        found = client.post("/predict", json={"texts": texts, "pairs": pairs})
        assert found.status_code == 200, found.text
        for answer, expected in zip(found.json()["predictions"], predict(saved, texts, pairs), strict=True):
            assert answer.get("probabilities", {}) == pytest.approx(expected.get("probabilities", {}), abs=1e-5)
            said = expected["prediction"]
            assert answer["prediction"] == (pytest.approx(said, abs=1e-5) if isinstance(said, float) else said)
        # An explanation in between changes nothing.
        asked = {"texts": texts[:2], "pairs": None if pairs is None else pairs[:2], "method": "leave-one-out"}
        (first, _) = client.post("/explain", json=asked).json()["explanations"]
        (expected,) = explain_texts(saved, texts[:1], pairs and pairs[:1], method="leave-one-out")
        assert first | {"seconds": 0} == json.loads(json.dumps(expected.to_dict())) | {"seconds": 0}
        assert client.post("/predict", json={"texts": texts, "pairs": pairs}).json() == found.json()
        facts = client.get("/health").json()["run"]
        assert (facts["run"], facts["kind"], facts["pairs"]) == ("mine", saved.kind, saved.is_pair)


def test_joined_requests_are_answered_as_if_they_were_alone(run: Predictor) -> None:
    backend, sizes = RunBackend(run, name="mine"), []
    texts = [f"{text} {number}" for number in range(10) for text in TEXTS]
    alone = [backend.predict([(text, None, {})])[0] for text in texts]

    async def joined() -> list[dict[str, Any]]:
        engine = Engine(backend, ServerLimits(batch=16, wait_ms=10), on_batch=lambda rows, _: sizes.append(rows))
        async with engine:
            return [one for (one,) in await asyncio.gather(*(engine.predict([(text, None, {})]) for text in texts))]

    answers = asyncio.run(joined())
    assert sizes == [16, 16, 16, 2]
    for answer, other in zip(answers, alone, strict=True):
        assert answer["prediction"] == other["prediction"]
        assert answer["probabilities"] == pytest.approx(other["probabilities"], abs=2e-6)


def test_another_precision_is_served_and_explained_in(run: Predictor) -> None:
    backend = RunBackend(run, name="mine", precision="bf16")
    (answer,) = backend.predict([(TEXTS[0], None, {})])
    (expected,) = predict(run, [TEXTS[0]])
    assert answer["probabilities"] == pytest.approx(expected["probabilities"], abs=0.05)
    assert answer["probabilities"] != pytest.approx(expected["probabilities"], abs=1e-6)
    found = backend.explain((TEXTS[0], None), threading.Event())
    assert found["method"] == "leave-one-out"
    assert backend.predict([(TEXTS[0], None, {})]) == [answer]


def test_an_explanation_that_nobody_waits_for_stops_and_leaves_no_hook(
    run: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, stop, passes = RunBackend(run, name="mine"), threading.Event(), []
    hooks = hooks_of(run.model)

    def stop_after_a_pass(scorer: Any, *given: Any) -> Any:
        scorer.scores(given[0])
        passes.append(1)
        stop.set()
        return leave_one_out(scorer, *given)

    method = __import__("attentune.explain.methods", fromlist=["METHODS"]).METHODS
    changed = __import__("dataclasses").replace(method["leave-one-out"], score=stop_after_a_pass)
    monkeypatch.setitem(method, "leave-one-out", changed)
    with pytest.raises(StoppedError):
        backend.explain((TEXTS[0], None), stop, method="leave-one-out")
    assert passes == [1]
    assert hooks_of(run.model) == hooks


def test_an_explanation_of_a_baseline_stops_between_parts_of_its_rows(tmp_path: Path) -> None:
    texts = tuple(f"{word} film number {row}" for row in range(12) for word in ("good", "bad"))
    space = LabelSpace("classification", ("bad", "good"))
    rows = TextRows(tuple(map(str, range(24))), texts, None, np.array([1, 0] * 12), "train")
    baseline = TfidfLinear().fit(rows, space)
    saved = BaselinePredictor(tmp_path, Config(), space, baseline)
    stop, sizes, logits = threading.Event(), [], TfidfLinear.logits

    class Stopping(TfidfLinear):
        def logits(self, rows: TextRows) -> np.ndarray:
            sizes.append(len(rows))
            if len(sizes) == 2:
                stop.set()
            return logits(self, rows)

    row = (" ".join(f"word{number}" for number in range(200)), None, {})
    baseline.__class__ = Stopping
    with pytest.raises(StoppedError):
        RunBackend(saved, name="x").explain(row, stop, method="leave-one-out")
    assert sizes == [32, 32]
    assert "logits" not in vars(baseline)
    stop.clear()
    found = RunBackend(saved, name="x").explain(row, stop, method="leave-one-out")
    baseline.__class__ = TfidfLinear
    (expected,) = explain_texts(saved, [row[0]], method="leave-one-out")
    assert found | {"seconds": 0} == json.loads(json.dumps(expected.to_dict())) | {"seconds": 0}


# Mistakes and limits


def test_a_bad_cell_is_named_by_its_row_of_the_request() -> None:
    slow = Slow()
    facts = slow.facts() | {"columns": ["price:number"]}
    slow.facts = lambda: facts
    slow.gate.set()
    cells = ["1"] * 35 + ["a\0"] + ["1"] * 4
    with client_of(slow, limits=ServerLimits()) as client:
        answer = client.post("/predict", json={"texts": ["a"] * 40, "columns": {"price": cells}})
    assert answer.status_code == 422
    assert "columns: row 35: column 'price' holds a NUL character" in answer.json()["detail"]


def test_scores_of_words_in_a_file_that_a_run_lacks_are_refused_in_the_words_of_the_api() -> None:
    with client_of(Slow()) as client:
        answer = client.post("/file?name=a.csv&words=true", content=b"text\nyes\n")
    assert (answer.status_code, answer.json()["detail"][:26]) == (422, "words: this run does not s")


LONG = [
    (
        "predict",
        {"texts": ["a", "b" * 201]},
        "texts[1] has 201 characters; this server accepts at most 200. Shorten it, or start the server with"
        " --max_characters 201.",
    ),
    ("mask", {"text": "x" * 201, "words": []}, "texts[0] has 201 characters; this server accepts at most 200."),
    ("mask", {"text": "a", "words": [{"start": 0, "end": 1}] * 1001}, "words: list should have at most 1000 items"),
    ("file?name=a.csv", "text\n" + "yes\n" * 51, "a.csv has 51 rows; this server accepts at most 50."),
]


@pytest.mark.parametrize(("path", "body", "message"), [*MISTAKES, *LONG])
def test_invalid_requests_get_one_sentence(client: TestClient, path: str, body: Any, message: str) -> None:
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    headers = {} if path.startswith("file") else {"content-type": "application/json"}
    answer = client.post(f"/{path}", content=content, headers=headers)
    assert (answer.status_code, list(answer.json())) == (422, ["detail"])
    assert answer.json()["detail"].startswith(message), answer.json()
    assert not [word for word in ("attentune-serve-", "--no_header") if word in answer.text]  # a folder, a flag


def test_a_run_of_pairs_asks_for_them(tiny: Tiny) -> None:
    with client_of(tiny_run(tiny(), "pair")) as client:
        assert client.post("/predict", json={"texts": ["a"]}).json() == {
            "detail": "pairs: got none, but this run reads pairs: give the second text of each in pairs."
        }
        assert client.post("/predict", json={"texts": ["a", "b"], "pairs": ["c"]}).json() == {
            "detail": "pairs: got 1 second texts for 2 texts, expected one for each."
        }
        long = client.post("/predict", json={"texts": ["a" * 101], "pairs": ["b" * 100]}).json()["detail"]
        assert long.startswith("texts[0] has 201 characters")


def test_errors_of_other_paths_and_full_queues_are_told(monkeypatch: pytest.MonkeyPatch, client: TestClient) -> None:
    assert (client.get("/nothing").status_code, client.get("/nothing").json()) == (
        404, {"detail": "There is nothing here. The API is described at /docs."},
    )  # fmt: skip
    assert client.get("/predict").status_code == 405
    assert client.get("/predict").json() == {"detail": "GET does not work here. The API is described at /docs."}

    async def full(*given: Any) -> Any:
        raise RequestError(503, "Full.", retry_after_s=7)

    monkeypatch.setattr(Engine, "predict", full)
    answer = client.post("/predict", json={"texts": ["a"]})
    assert (answer.status_code, answer.headers["retry-after"], answer.json()) == (503, "7", {"detail": "Full."})


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused_by_its_head_and_by_what_comes(client: TestClient, chunked: bool) -> None:
    body = b"x" * (2**20 + 1)
    answer = client.post("/predict", content=iter([body]) if chunked else body)
    assert answer.status_code == 413
    assert answer.json() == {
        "detail": "The request body is larger than 1 MB, the most that this server accepts. Send fewer texts a request,"
        " split the file, or start the server with a higher --max_body_mb."
    }


class Slow:
    """A backend whose predictions wait until they may go on, and fail for some texts."""

    is_pair = False

    def __init__(self) -> None:
        self.gate, self.seen = threading.Event(), []

    def facts(self) -> dict[str, Any]:
        names = ("does", "task_type", "score", "max_length", "explains_by")
        return (
            dict.fromkeys(names)
            | {"run": "slow", "kind": "slow", "labels": [], "methods": [], "pairs": False}
            | {"scores_words": False, "columns": []}
        )

    def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        self.seen.append([text for text, *_ in rows])
        if any(text == "bug" for text, *_ in rows):
            raise KeyError("what only we should see")
        assert self.gate.wait(20)
        return [{"prediction": text} for text, *_ in rows]

    def explain(self, row: Row, stop: threading.Event, **options: Any) -> dict[str, Any]:
        assert stop.wait(20)
        raise StoppedError


def test_an_answer_that_takes_too_long_is_given_up_and_its_texts_are_not_computed() -> None:
    slow = Slow()
    with client_of(slow, limits=ServerLimits(timeout_s=0.3, wait_ms=0)) as client:
        threads = [threading.Thread(target=client.post, args=("/predict",), kwargs={"json": {"texts": ["first"]}})]
        threads[0].start()
        while not slow.seen:
            time.sleep(0.01)
        answer = client.post("/predict", json={"texts": ["second"]})
        assert answer.status_code == 504
        assert answer.json()["detail"].startswith(
            "The answer was not ready within 0.3 s, the time limit of this server. Send fewer or shorter texts"
        )
        assert answer.json()["detail"].endswith("or start the server with a higher --timeout_s.")
        threads[0].join()
        assert client.post("/explain", json={"texts": ["a"]}).status_code == 504
        slow.gate.set()
        assert client.post("/predict", json={"texts": ["third"]}).json() == {"predictions": [{"prediction": "third"}]}
    assert slow.seen == [["first"], ["third"]]


def test_full_queues_answer_503_and_when_to_come_again() -> None:
    slow = Slow()

    async def crowd() -> None:
        async with Engine(slow, ServerLimits(queue=2, explain_queue=1, batch=1, wait_ms=0)) as engine:
            tasks = [asyncio.create_task(engine.predict([("first", None, {})]))]
            while not slow.seen:
                await asyncio.sleep(0.01)
            tasks += [asyncio.create_task(engine.predict([(str(n), None, {})])) for n in range(2)]
            await asyncio.sleep(0.01)
            with pytest.raises(RequestError) as full:
                await engine.predict([("too much", None, {})])
            assert (full.value.status, full.value.retry_after_s) == (503, 1)
            assert str(full.value) == (
                "2 texts wait, and this server lets at most 2 wait. Send the request again in 1 s, or start the server"
                " with a higher --max_queue."
            )
            explaining = asyncio.create_task(engine.explain([("a", None, {})]))
            await asyncio.sleep(0.01)
            with pytest.raises(RequestError, match="1 requests for explanations or files wait, the most that"):
                await engine.explain([("a", None, {})])
            explaining.cancel()
            slow.gate.set()
            assert [one["prediction"] for (one,) in await asyncio.gather(*tasks)] == ["first", "0", "1"]

    asyncio.run(crowd())


def test_a_bug_of_ours_is_a_message_and_fails_nobody_else() -> None:
    slow = Slow()
    slow.gate.set()
    with client_of(slow, limits=ServerLimits(wait_ms=200)) as client:
        answers: dict[str, Any] = {}

        def ask(text: str) -> None:
            answers[text] = client.post("/predict", json={"texts": [text]})

        threads = [threading.Thread(target=ask, args=(text,)) for text in ("bug", "fine")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers["fine"].json() == {"predictions": [{"prediction": "fine"}]}
    assert answers["bug"].status_code == 500
    assert (
        answers["bug"].json()["detail"].startswith("Internal error: this is a bug in Attentune, not in your request.")
    )
    assert "what only we should see" not in answers["bug"].text


# Who may ask


def test_the_key_is_asked_for_where_texts_and_figures_are(run: Predictor) -> None:
    with client_of(run, api_key=KEY) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": KEY + "x"}, {"authorization": KEY}):
            for method, path in (("POST", "/predict"), ("POST", "/explain"), ("GET", "/metrics"), ("GET", "/nothing")):
                answer = client.request(method, path, headers=headers, content=b"not read")
                assert answer.status_code == 401, (headers, path)
                assert answer.headers["www-authenticate"] == "Bearer"
                said = "wrong" if "wrong" in str(headers) or "x-api-key" in headers else "missing"
                assert answer.json() == {
                    "detail": f"The API key is {said}. Send the key that the server was started with in the header"
                    " Authorization: Bearer KEY, or X-API-Key: KEY."
                }
        for headers in ({"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer  {KEY}"}, {"x-api-key": KEY}):
            assert client.post("/predict", headers=headers, json={"texts": ["a"]}).status_code == 200
            assert client.get("/metrics", headers=headers).status_code == 200
        for path in ("/health", "/docs", "/openapi.json", "/static-offline-docs/swagger-ui.css"):
            assert client.get(path).status_code == 200
        assert client.get("/openapi.json").json()["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_the_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr("hmac.compare_digest", lambda one, two: compared.append((one, two)) or one == two)
    guard = Guard(None, api_key=KEY)
    assert guard._refusal("/predict", {"x-api-key": "ä"})[0] == 401
    assert guard._refusal("/predict", {"x-api-key": KEY}) is None
    assert compared == [("ä".encode("latin-1"), KEY.encode()), (KEY.encode(), KEY.encode())]


@pytest.mark.parametrize("key", ["", "short", "with a space in it all", "schlüssel-mit-umlaut", "line\nbreak-in-a-key"])
def test_keys_that_no_header_can_hold_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=r"--api_key: expected a key of at least 16 ASCII characters") as caught:
        check_key(key, "--api_key")
    assert not key or key not in str(caught.value)
    assert check_key(None, "x") is None
    assert check_key(KEY, "x") == KEY


def test_other_hosts_and_origins_are_refused(client: TestClient, run: Predictor) -> None:
    answer = client.get("/health", headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()) == (400, {"detail": "Invalid host header"})
    answer = client.post("/predict", json={"texts": ["a"]}, headers={"origin": "http://evil.example"})
    assert answer.status_code == 403
    assert answer.json()["detail"].startswith("The request comes from a page of http://evil.example, expected one of")
    assert client.get("/health", headers={"origin": "http://["}).status_code == 403
    with client_of(run, hosts=None) as any_host:
        assert any_host.get("/health", headers={"host": "evil.example"}).status_code == 200


def test_a_body_that_stops_gets_a_message() -> None:
    sent: list[Any] = []

    async def ask() -> None:
        app = api_app(Slow(), limits=LIMITS)
        app._body_timeout_s = 0.05

        async def receive() -> Any:
            await asyncio.sleep(20)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/predict", "headers": headers, "query_string": b""}
        await app(scope, receive, send)

    asyncio.run(ask())
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"]) == {
        "detail": "The rest of the request did not arrive within 0.05 s. Send it again."
    }


# What is told


def test_metrics_count_what_was_done(run: Predictor) -> None:
    with client_of(run, limits=ServerLimits(wait_ms=0)) as client:
        client.post("/predict", json={"texts": ["a", "b", "c"]})
        client.post("/predict", json={"texts": []})
        client.post("/explain", json={"texts": ["a"]})
        client.get("/somewhere")
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["attentune_requests_total", "/predict", "200"] == 1
    assert samples["attentune_requests_total", "/predict", "422"] == 1
    assert samples["attentune_requests_total", "404", "other"] == 1
    assert samples["attentune_texts_total", "/predict"] == 3
    assert samples["attentune_texts_total", "/explain"] == 1
    assert samples["attentune_batch_texts_sum",] == 3
    assert samples["attentune_batch_seconds_count",] == 1
    assert samples["attentune_request_seconds_count", "/explain"] == 1
    assert samples["attentune_waiting_texts",] == 0
    assert any(name == "attentune_run_info" and "mine" in labels for name, *labels in samples)


def test_the_openapi_page_names_no_other_host_and_runs_its_own_scripts_only(client: TestClient) -> None:
    page = client.get("/docs")
    assert re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert not re.search(r'(?:src|href)="(?!/)', page.text)
    policy = page.headers["content-security-policy"]
    assert policy.count("'sha256-") == len(re.findall(r"<script[^>]*>(?!\s*</script>)", page.text)) == 1
    for address in re.findall(r'(?:src|href)="([^"]*)"', page.text):
        assert client.get(address).status_code == 200
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/predict", "/explain", "/mask", "/file", "/health", "/metrics"}
    assert {"200", "401", "413", "422", "503", "504"} <= set(paths["/predict"]["post"]["responses"])


def test_the_access_log_has_a_line_for_each_request_without_its_texts(run: Predictor) -> None:
    lines: list[str] = []
    with client_of(run, log=lines.append, api_key=KEY) as client:
        client.post("/predict", json={"texts": ["a secret"]}, headers={"x-api-key": KEY})
        client.post("/file?name=secret.csv", content=b"text\na secret\n")
    first, second = map(json.loads, lines)
    assert first.keys() == {"time", "client", "method", "path", "status", "ms"}
    assert (first["method"], first["path"], first["status"]) == ("POST", "/predict", 200)
    assert (second["path"], second["status"]) == ("/file", 401)
    assert not any("secret" in line for line in lines)


def test_health_names_weights_and_precision(tiny: Tiny, tmp_path: Path) -> None:
    ids = []
    for name, family in (("a", "bert"), ("b", "bert"), ("c", "distilbert")):
        facts = RunBackend(Predictor.load(save_run(tiny(family), tmp_path / name)), name="mine").facts()
        assert facts["precision"] == "fp32"
        ids.append(facts["id"])
    assert ids[0] == ids[1] != ids[2]
    assert re.fullmatch("[0-9a-f]{16}", ids[0])


def test_only_errors_become_json() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": scope["status"], "headers": headers})
        await send({"type": "http.response.body", "body": b"o", "more_body": True})
        await send({"type": "http.response.body", "body": b"k"})

    counted: list[tuple[str, int]] = []
    app = Guard(plain, count=lambda scope, status, seconds: counted.append((scope["path"], status)))
    for status in (200, 400):
        asyncio.run(app({"type": "http", "path": "/x", "status": status, "headers": []}, None, send))
    assert [message.get("body") for message in sent] == [None, b"o", b"k", None, b'{"detail": "ok"}']
    assert (b"content-length", b"16") in sent[3]["headers"]
    assert counted == [("/x", 200), ("/x", 400)]
