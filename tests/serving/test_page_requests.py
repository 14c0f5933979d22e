"""What the page asks the server for: masked words, files, the example, wrong rows, and the page itself."""

import csv
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from attentune.explain.explainer import answer_masked
from attentune.explain.explanation import Subword
from attentune.explain.texts import predict_explained
from attentune.inference.evaluation import evaluate_split
from attentune.inference.predictions import predictions_csv
from attentune.inference.predictor import Predictor, predict, predict_rows
from attentune.serving import backend as backend_module
from attentune.serving.api import api_app
from attentune.serving.backend import RunBackend
from helpers.hostile_texts import HOSTILE
from helpers.tiny_models import rows_of
from helpers.tiny_runs import TEXTS, hooks_of, saved_ensemble, tiny_run
from serving.test_api import LIMITS, client, client_of, run

__all__ = ["client", "run"]
Tiny = Callable[..., Path]
ROWS = ("Yes", "one two three four five six", "seven words are more than six words", "nobody knows why", "it moves on")


def with_file(run: Predictor, folder: Path, labels: list[str], texts: tuple[str, ...] = ROWS, **data: Any) -> Predictor:
    """The run, as if it had been trained with this validation file and saved in the folder."""
    file = folder / "dev.csv"
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([("id", "text", "label"), *zip("abcdefgh", texts, labels, strict=False)])
    own = replace(run.config.data, validation_file=str(file), **data)
    return replace(run, folder=folder, config=replace(run.config, data=own))


# Masked words


@pytest.mark.parametrize("kind", ["classification", "pair", "regression", "ordinal", "ensemble"])
def test_words_are_masked(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    saved = Predictor.load(saved_ensemble(tmp_path, tiny)) if kind == "ensemble" else tiny_run(tiny(), kind)
    pair = "Nobody plays the guitar." if saved.is_pair else None
    words = [{"start": 4, "end": 10}, {"start": 0, "end": 6, "in": "pair" if pair else "text"}]
    with client_of(saved) as client:
        found = client.post("/mask", json={"text": TEXTS[0], "pair": pair, "words": words})
        assert found.status_code == 200, found.text
        before = client.post("/predict", json={"texts": [TEXTS[0]], "pairs": pair and [pair]}).json()["predictions"][0]
    within = "pair" if pair else "text"
    chosen = [Subword("actors", 4, 10, 0.0, "text"), Subword((pair or TEXTS[0])[:6], 0, 6, 0.0, within)]
    _, expected, _ = answer_masked(saved, rows_of([TEXTS[0]], pair and [pair]), chosen)
    assert found.json()["unread"] == []
    after = found.json()["after"]
    for name, share in expected.get("probabilities", {}).items():
        assert after["probabilities"][name] == pytest.approx(share, abs=1e-5)
        assert found.json()["before"]["probabilities"][name] == pytest.approx(before["probabilities"][name], abs=1e-5)
    assert after["prediction"] == pytest.approx(expected["prediction"], abs=1e-5) if kind == "regression" else True


def test_words_beyond_the_limit_of_the_run_are_named_and_no_hook_stays(tiny: Tiny) -> None:
    short = tiny_run(tiny(), max_length=8)
    hooks = hooks_of(short.model)
    text = "one two three four five six seven eight nine ten"
    with client_of(short) as client:
        body = {"text": text, "words": [{"start": 0, "end": 3}, {"start": 45, "end": 48}]}
        assert client.post("/mask", json=body).json()["unread"] == ["ten"]
    assert hooks_of(short.model) == hooks


# Files


@pytest.mark.parametrize("words", [False, True])
def test_a_file_is_predicted_as_by_predict(
    run: Predictor, client: TestClient, monkeypatch: pytest.MonkeyPatch, words: bool
) -> None:
    monkeypatch.setattr(backend_module, "_CHUNK", 2)
    content = json.dumps([{"body": text} for text in TEXTS]).encode()
    answer = client.post(f"/file?name=new.json&text_column=body&words={words}", content=content)
    assert answer.status_code == 200, answer.text
    found, rows = answer.json(), rows_of(TEXTS)
    logits_NC, column = predict_explained(run, rows) if words else (predict_rows(run, rows), [])
    expected = predictions_csv(rows, logits_NC, run.label_space, {"explanation": column} if words else None)
    (header, *lines), (other_header, *other_lines) = (
        list(csv.reader(text.splitlines())) for text in (found["csv"], expected)
    )
    assert header == other_header
    for line, other in zip(lines, other_lines, strict=True):
        assert line[:2] == other[:2]
        assert list(map(float, line[2:4])) == pytest.approx(list(map(float, other[2:4])), abs=1e-5)
        assert [json.loads(one)["unit"] for one in line[5:]] == [json.loads(one)["unit"] for one in other[5:]]
    assert (found["rows"], found["columns"], found["wrong"]) == (5, ["text", *header], None)
    assert [line[0] for line in found["first"]] == list(TEXTS)


def test_the_wrong_rows_of_a_labelled_file(run: Predictor, client: TestClient) -> None:
    predicted = [one["prediction"] for one in predict(run, list(ROWS))]
    labels = ["good" if label == "bad" else "bad" for label in predicted[:3]] + predicted[3:]
    content = "text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(ROWS, labels, strict=True))
    wrong = client.post("/file?name=new.csv", content=content.encode()).json()["wrong"]
    assert (wrong["source"], wrong["total"]) == ("5 rows of the file", 3)
    assert {row["text"] for row in wrong["rows"]} == set(ROWS[:3])
    sizes = [row["error"] for row in wrong["rows"]]
    assert sizes == sorted(sizes, reverse=True)
    assert all(row["label"] != row["prediction"] for row in wrong["rows"])


def test_a_file_for_a_run_of_pairs(tiny: Tiny) -> None:
    with client_of(tiny_run(tiny(), "pair")) as client:
        found = client.post("/file?name=a.tsv&text_pair_column=b", content=b"text\tb\nyes\tno\n").json()
        assert found["columns"][:2] == ["text", "pair"]
        assert found["first"][0][:2] == ["yes", "no"]
        lacking = client.post("/file?name=a.tsv", content=b"text\tb\nyes\tno\n").json()["detail"]
        assert "Name the second with text_pair_column." in lacking


# The example and the wrong rows of the run


def test_the_example_is_the_first_row_of_six_to_thirty_words(run: Predictor, tiny: Tiny, tmp_path: Path) -> None:
    example = RunBackend(with_file(run, tmp_path, ["bad", "good", "bad", "good", "bad"]), name="x").example()
    about = "An example: row b of the validation rows, labelled good. Type your own."
    assert example == {"text": ROWS[1], "pair": "", "about": about}
    long = RunBackend(with_file(run, tmp_path, ["bad", "good"], ("no", "word " * 31)), name="x").example()
    assert long["about"] == "An example. Type your own."
    assert long["text"].startswith("The first half was slow")
    lost = replace(run, config=replace(run.config, data=replace(run.config.data, validation_file="/no/such.csv")))
    assert RunBackend(lost, name="x").example() == long
    assert RunBackend(tiny_run(tiny(), "pair"), name="x").example()["pair"]


def test_the_validation_rows_are_read_once_and_predictions_do_not_wait_for_them(
    run: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, gate, read = [], threading.Event(), backend_module.check_shown

    def slow(*given: Any) -> None:
        reads.append(1)
        assert gate.wait(60)
        read(*given)

    monkeypatch.setattr(backend_module, "check_shown", slow)
    with client_of(with_file(run, tmp_path, ["bad", "good"])) as client:
        page = threading.Thread(target=client.get, args=("/example",))
        page.start()
        while not reads:
            time.sleep(0.01)
        status = client.post("/predict", json={"texts": ["a"]}).status_code
        gate.set()
        page.join()
        assert status == 200
        assert client.get("/example").json()["text"] == ROWS[1]
        assert client.get("/errors").json()["source"] == "2 validation rows"
    assert reads == [1]


@pytest.mark.parametrize("kept", ["no", "yes", "from before a calibration"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_wrong_rows_are_those_of_evaluate(tiny: Tiny, tmp_path: Path, kind: str, kept: str) -> None:
    labels = ["bad", "good", "bad", "good", "bad"] if kind == "classification" else ["1", "2", "3", "4", "5"]
    run = with_file(tiny_run(tiny(), kind, gate=False), tmp_path, labels, task_type=kind)
    rows = run.data(None, ("validation",)).splits["validation"]
    logits_NC = predict_rows(run, rows)
    if kept != "no":  # predictions of the run folder, the opposite of what the run would say now
        (tmp_path / "predictions_validation.csv").write_text(predictions_csv(rows, -logits_NC, run.label_space))
    if kept == "yes":
        logits_NC = -logits_NC
    elif kept != "no":
        (tmp_path / "calibration.json").write_text("{}")
    expected = evaluate_split("validation", rows, logits_NC, run.label_space, ("accuracy",) if kind[0] == "c" else ())
    with client_of(run) as client:
        found = client.get("/errors").json()
    assert (found["source"], found["total"]) == ("5 validation rows", len(expected.errors))
    shown = [(row["text"], row["label"], row["prediction"][:5]) for row in found["rows"]]
    assert shown == [(ROWS[error.row], error.label, error.prediction[:5]) for error in expected.errors]
    sizes = [row["error"] for row in found["rows"]]
    assert sizes == pytest.approx([error.size for error in expected.errors], abs=1e-3)


def test_predictions_of_other_rows_are_not_used(
    run: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = with_file(run, tmp_path, ["bad", "good", "bad"])
    header = "id,label,prediction,p_bad,p_good\n"
    (tmp_path / "predictions_validation.csv").write_text(header + "x,bad,good,0.1,0.9\n")
    said = [one["prediction"] for one in predict(run, list(ROWS[:3]))]
    sizes, score = [], RunBackend.score
    monkeypatch.setattr(backend_module, "_CHUNK", 2)
    monkeypatch.setattr(
        RunBackend, "score", lambda *given, words: sizes.append(len(given[1])) or score(*given, words=words)
    )
    with client_of(saved) as client:
        found = client.get("/errors").json()
    assert found["total"] == int(np.sum(np.array(said) != ["bad", "good", "bad"]))
    assert sizes == [2, 1]  # other requests come between the parts
    with client_of(saved, limits=replace(LIMITS, rows=2)) as client:
        answer = client.get("/errors")
    assert answer.json() == {"detail": "There are 3 validation rows; this server predicts at most 2 (--max_rows)."}


def test_why_there_are_no_wrong_rows_and_predictions_of_others_are_not_used(
    run: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = replace(run, config=replace(run.config, data=replace(run.config.data, dataset_name="me/reviews")))
    saved = with_file(run, tmp_path, ["bad", "good"])
    expected = {
        "does not load the data set me/reviews": hub,
        "does not say what it was trained on": run,
        "The server does not read dev.csv: it is larger than 0 MB.": saved,
    }
    monkeypatch.setattr("attentune.data.load.MOST_SHOWN_BYTES", 10)
    for message, one in expected.items():
        with client_of(one) as client:
            answer = client.get("/errors")
        assert answer.status_code == 422
        assert message in answer.json()["detail"]


# The page


def test_the_page_says_what_the_run_does(tiny: Tiny, run: Predictor) -> None:
    kept = replace(run, folder=Path(__file__).parents[1] / "data_samples" / "run")
    with client_of(kept) as client:
        page = " ".join(client.get("/").text.split())
    assert "<h1>This model sorts a text into bad or good.</h1>" in page
    assert re.search(r"Run mine\. On its validation rows: [a-z0-9 ]+ \d\.\d{3}\. It reads up to 64 word pieces\.", page)
    assert "<option selected>leave-one-out</option>" in page
    for kind, said in (("regression", "gives a text a score"), ("pair", "sorts a pair of texts into no, maybe or yes")):
        with client_of(tiny_run(tiny(), kind)) as client:
            page = client.get("/").text
        assert f"<h1>This model {said}.</h1>" in page
        assert ('id="pair"' in page, 'id="target"' in page) == (kind == "pair", kind == "pair")


def test_the_page_names_no_other_host_and_needs_the_key_for_texts(client: TestClient, run: Predictor) -> None:
    answer = client.get("/")
    assert re.findall(r'(?:src|href)="([^"]*)"', answer.text) == ["data:,", "docs"]
    policy = answer.headers["content-security-policy"]
    assert policy.count("'sha256-") == 2
    assert "'unsafe" not in policy.split("script-src")[1].split(";")[0]
    assert answer.headers["x-frame-options"] == "DENY"
    assert "innerHTML" not in answer.text
    # The page is open and its texts need the key.
    key = "0123456789abcdef"
    with client_of(run, api_key=key) as client:
        assert 'id="key"' in client.get("/").text
        for method, path in (("GET", "/example"), ("GET", "/errors"), ("POST", "/mask"), ("POST", "/file?name=a.csv")):
            assert client.request(method, path).status_code == 401
        assert client.get("/example", headers={"X-API-Key": key}).status_code == 200


@pytest.mark.parametrize("text", HOSTILE[:6])
def test_hostile_names_are_text(run: Predictor, text: str) -> None:
    space = replace(run.label_space, names=("bad", text))
    with TestClient(
        api_app(RunBackend(replace(run, label_space=space), name=text), hosts=[]), base_url="http://localhost"
    ) as client:
        answer = client.get("/")
    assert answer.headers["content-security-policy"].count("'sha256-") == 2
    assert text not in answer.text
