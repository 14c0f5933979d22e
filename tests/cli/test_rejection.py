"""Texts of no class: the threshold of a run, by training or later, and what predict, evaluate and Python tell by it."""

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from starlette.testclient import TestClient

from attentune.cli.train import _text
from attentune.config import DataConfig
from attentune.data.dataset import TaskData
from attentune.errors import ConfigError
from attentune.inference.predictor import Predictor, predict, predict_rows
from attentune.metrics.rejection import ClassMeans, Rejection
from attentune.results import RunResult
from attentune.serving.api import api_app
from attentune.serving.backend import RunBackend
from attentune.training.calibration import reject_run
from helpers.samples import train_reviews, write_reviews
from helpers.tiny_runs import saved_ensemble

QUICK = ("--per_device_train_batch_size", "8", "--learning_rate", "2e-3", "--max_length", "24", "--num_train_epochs", 3)
OTHER = ("q z x", "17 + 4 = 21", "wxyz " * 9, "print(none)")


@pytest.fixture(scope="module")
def files(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, texts of no class, and runs: `run` rejects since its training, `plain` and the baseline `words` do not."""
    folder = tmp_path_factory.mktemp("rejection")
    (folder / "other.csv").write_text("\n".join(["text", *OTHER]) + "\n")
    train_reviews(folder, tiny("bert"), *QUICK, "--reject", 0.1, "--baselines", "none")
    train_reviews(folder, tiny("bert"), *QUICK, "--baselines", "none", name="plain")
    train_reviews(folder, tiny("bert"), "--preset", "tfidf-linear", name="words")
    return folder


def numbers(run: Path) -> dict:
    return json.loads((run / "rejection.json").read_text())


def distances(run: Path, texts: list[str]) -> list[float]:
    """Minus the squared distances of texts to the nearest class mean, from outside."""
    saved = Predictor.load(run)
    train = saved.data(None, ("train",)).splits["train"]
    vectors = []

    def keep(module, inputs) -> None:
        vectors.append(inputs[0].numpy())

    handle = saved.model.classifier.register_forward_pre_hook(keep)
    for text in (*train.texts, *texts):
        predict(saved, [text])
    handle.remove()
    vectors_NF = np.concatenate(vectors)
    means = ClassMeans.fit(vectors_NF[: len(train)], train.labels)
    return means.scores(vectors_NF[len(train) :]).tolist()


def test_training_saves_what_the_validation_rows_say(attentune, files: Path, tmp_path: Path) -> None:
    facts, saved = numbers(files / "run"), Predictor.load(files / "run")
    dev = saved.data(None, ("validation",)).splits["validation"]
    scores_N = np.array(distances(files / "run", list(dev.texts)))
    answers = predict(saved, list(dev.texts))
    right_N = np.array([one["prediction"] == saved.label_space.names[k] for one, k in zip(answers, dev.labels)])  # noqa: B905
    assert (facts["score"], facts["share"], facts["rows"]) == ("distance", 0.1, right_N.sum())
    place = int(0.1 * (right_N.sum() + 1)) - 1
    assert facts["threshold"] == pytest.approx(np.sort(scores_N[right_N])[place], rel=1e-3)
    assert [one["in_scope_score"] for one in answers] == pytest.approx(scores_N.tolist(), rel=1e-3)
    record = json.loads((files / "run/run.json").read_text())
    assert record["train"]["rejection"] == facts
    assert "rejected as of no class: " in (files / "run/README.md").read_text()
    assert "none is rejected" in (files / "plain/README.md").read_text()
    told = Rejection.load(files / "run").sentence()
    assert f"% of {facts['rows']} right predictions on held-out rows (at most 10.0% wanted)" in told
    for name in ("report.html", "report.md"):
        attentune.done("report", files / "run", "--output_file", tmp_path / name)
        assert told in (tmp_path / name).read_text()
    result = RunResult.load(files / "run/run.json")
    assert told in _text(result)
    none = "No text is rejected: None of 4 held-out rows is predicted rightly."
    assert none in _text(replace(result, notes=[none]))
    assert not (files / "plain/rejection.json").exists()


def test_predictions_have_the_columns_in_every_format(attentune, files: Path, tmp_path: Path) -> None:
    run, other = files / "run", files / "other.csv"
    answers = predict(run, list(OTHER))
    assert [one["rejected"] for one in answers] == [
        one["in_scope_score"] < numbers(run)["threshold"] for one in answers
    ]
    assert (
        attentune("predict", run, "--input_file", other, "--output_file", tmp_path / "a.csv", "--keep_columns", "text")[
            0
        ]
        == 0
    )
    lines = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert [*lines[0]][-3:] == ["rejected", "in_scope_score", "text"]
    assert [line["rejected"] == "true" for line in lines] == [one["rejected"] for one in answers]
    scores = pytest.approx([one["in_scope_score"] for one in answers], rel=1e-4)
    assert [float(line["in_scope_score"]) for line in lines] == scores
    _, out, _ = attentune("predict", run, "--input_file", other, "--format", "json")
    told = [json.loads(line) for line in out.splitlines()]
    assert [(one["rejected"], type(one["in_scope_score"])) for one in told] == [
        (one["rejected"], float) for one in answers
    ]
    assert attentune("predict", run, "--input_file", other, "--output_dir", tmp_path / "parts")[0] == 0
    part = pandas.read_parquet(tmp_path / "parts/part-00001-of-00001.parquet")
    assert (part["rejected"].dtype, part["rejected"].tolist()) == (bool, [one["rejected"] for one in answers])
    assert part["in_scope_score"].tolist() == scores
    frame = predict(run, pandas.DataFrame({"text": OTHER}))
    assert frame["rejected"].tolist() == [one["rejected"] for one in answers]
    assert attentune("predict", files / "plain", "--text", "a")[1].startswith("id,prediction,p_bad,p_good\n")


def test_an_ensemble_has_the_energies_of_its_members(attentune, files: Path, tiny, tmp_path: Path) -> None:
    run, space = tmp_path / "run", Predictor.load(files / "plain").label_space
    saved_ensemble(run, tiny, space=space, members={"bert": 2, "roberta": 1})
    flags = ("--validation_file", files / "dev.csv", "--text_column", "text", "--label_column", "label")
    attentune.done("calibrate", run, "--reject", 0.3, *flags)
    saved, facts = Predictor.load(run), numbers(run)
    rows = saved.data(DataConfig(validation_file=str(files / "dev.csv")), ("validation",)).splits["validation"]
    by_member, texts = [], replace(rows, labels=None)
    for folders in saved.members.values():
        by_run = []
        for folder in folders:
            logits_NC = predict_rows(run / folder, texts).astype(float)
            by_run.append([math.log(sum(math.exp(z - sum(row) / 2) for z in row)) for row in logits_NC.tolist()])
        by_member.append(np.mean(by_run, axis=0))
    weights = [share / np.std(one) for share, one in zip((0.75, 0.25), by_member, strict=True)]
    assert (facts["score"], facts["weights"]) == ("energy", pytest.approx(weights, rel=1e-4))
    scores_N = weights[0] * by_member[0] + weights[1] * by_member[1]
    answers = predict(run, list(rows.texts))
    assert [one["in_scope_score"] for one in answers] == pytest.approx(scores_N.tolist(), rel=1e-3)
    right_N = [one["prediction"] == space.names[k] for one, k in zip(answers, rows.labels, strict=True)]
    kept = sorted(scores_N[right_N])
    assert facts["threshold"] == pytest.approx(kept[max(int(0.3 * (len(kept) + 1) + 1e-9) - 1, 0)], rel=1e-3)


@pytest.mark.parametrize("kind", ["plain", "words"])
def test_a_finished_run_of_any_kind_gets_one(attentune, files: Path, tmp_path: Path, kind: str) -> None:
    run = Path(shutil.copytree(files / kind, tmp_path / "run"))
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != "README.md"}
    status, out, _ = attentune("calibrate", run, "--reject", "--format", "json")
    assert (status, json.loads(out)) == (0, {"rejection": numbers(run)})
    assert all((run / name).read_bytes() == content for name, content in before.items() if name != ".lock")
    assert numbers(run)["share"] == 0.05
    assert numbers(run)["score"] == ("distance" if kind == "plain" else "energy")
    assert {*predict(run, ["a"])[0]} == {"prediction", "probabilities", "rejected", "in_scope_score"}
    status, out, _ = attentune("calibrate", run, "--reject", 0.2, "--out_of_scope_file", files / "other.csv")
    assert (status, "AUROC" in out) == (0, True)
    expected = {"distance", "energy", "probability"} if kind == "plain" else {"energy", "probability"}
    assert {*numbers(run)["auroc"]} == expected
    assert numbers(run)["score"] == max(numbers(run)["auroc"], key=numbers(run)["auroc"].get)


def test_without_training_rows_and_with_another_temperature(attentune, files: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(files / "plain", tmp_path / "run"))
    dev = write_reviews(tmp_path / "more.csv", 40, seed=2)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("train.csv", "gone.csv"))
    assert attentune("calibrate", run, "--reject", "--validation_file", dev)[0] == 0
    assert numbers(run)["score"] == "energy"
    status, out, _ = attentune("calibrate", run, "--validation_file", dev)
    assert (status, "No text is rejected any more" in out) == (0, True)
    assert not (run / "rejection.json").exists()
    assert "none is rejected" in (run / "README.md").read_text()


def test_evaluate_tells_the_same_as_the_predictions(attentune, files: Path) -> None:
    run, flags = files / "run", ("--out_of_scope_file", files / "other.csv")
    told = json.loads(attentune("evaluate", run, *flags, "--format", "json")[1])["out_of_scope"]["validation"]
    saved = Predictor.load(run)
    dev = saved.data(None, ("validation",)).splits["validation"]
    known, unknown = predict(saved, list(dev.texts)), predict(saved, list(OTHER))
    right = [one["prediction"] == saved.label_space.names[k] for one, k in zip(known, dev.labels, strict=True)]
    wins = [(a["in_scope_score"] > b["in_scope_score"]) for a in known for b in unknown]
    kept = [not one["rejected"] for one in known]
    assert told["auroc"] == pytest.approx(np.mean(wins))
    assert told["kept"] == pytest.approx(np.mean(kept))
    assert told["right_lost"] == pytest.approx(1 - np.array(kept)[np.array(right)].mean())
    assert told["accuracy_of_kept"] == pytest.approx(np.array(right)[np.array(kept)].mean())
    assert told["out_of_scope_rejected"] == pytest.approx(np.mean([one["rejected"] for one in unknown]))
    assert "AUROC" in attentune("evaluate", run, *flags)[1]
    _, out, _ = attentune("evaluate", files / "plain", *flags)
    assert "attentune calibrate RUN --reject" in out


def test_evaluate_counts_texts_without_words_as_rejected(attentune, files: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(files / "run", tmp_path / "run"))
    rejection = json.loads((run / "rejection.json").read_text())
    (run / "rejection.json").write_text(json.dumps({**rejection, "threshold": -1e9}))
    (blank := tmp_path / "blank.csv").write_text('text\n" "\n"a"\n')
    _, out, _ = attentune("evaluate", run, "--out_of_scope_file", blank, "--format", "json")
    assert json.loads(out)["out_of_scope"]["validation"]["out_of_scope_rejected"] == 0.5


def test_explained_rows_are_rejected_too(attentune, files: Path, tiny) -> None:
    run = train_reviews(files, tiny("bert"), *QUICK, "--reject", "--preset", "ssa-hybrid", name="ssa")
    _, out, _ = attentune("predict", run, "--input_file", files / "other.csv", "--explain", "--format", "json")
    told = [json.loads(line) for line in out.splitlines()]
    assert [*told[0]][-3:] == ["rejected", "in_scope_score", "explanation"]
    assert [one["rejected"] for one in told] == [one["rejected"] for one in predict(run, list(OTHER))]


def test_a_text_without_words_is_rejected_whatever_its_score(files: Path, tmp_path: Path) -> None:
    run = shutil.copytree(files / "run", tmp_path / "run")
    path = run / "rejection.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threshold": -1e9}))
    assert [one["rejected"] for one in predict(run, ["", "a fine film", " \n"])] == [True, False, True]


def test_an_evaluator_has_the_means_for_all_rows(files: Path) -> None:
    saved = Predictor.load(files / "run")
    rows = saved.data(None, ("validation",)).splits["validation"]
    for part in (rows.take(range(3)), rows.take(range(3, 8))):
        evaluator = saved.evaluator(TaskData("input", saved.label_space, (), {"input": part}))
        evaluator.predict("input")
        found = evaluator.rejection_columns("input")["in_scope_score"]
        assert found == pytest.approx([one["in_scope_score"] for one in predict(saved, list(part.texts))], rel=1e-5)


def test_a_server_answers_it(files: Path) -> None:
    app = api_app(RunBackend(Predictor.load(files / "run"), name="run"))
    with TestClient(app, base_url="http://localhost") as client:
        told = client.post("/predict", json={"texts": OTHER}).json()["predictions"]
        file = client.post("/file?name=other.csv", content=(files / "other.csv").read_bytes()).json()
        assert '"rejected"' in client.get("/openapi.json").text
        assert "may belong to none of the classes" in client.get("/").text
    answers = predict(files / "run", list(OTHER))
    assert [one["rejected"] for one in told] == [one["rejected"] for one in answers]
    scores = [one["in_scope_score"] for one in answers]
    assert [one["in_scope_score"] for one in told] == pytest.approx(scores, rel=1e-4)
    assert file["columns"][-2:] == ["rejected", "in_scope_score"]
    assert [line[-2] == "true" for line in file["first"]] == [one["rejected"] for one in answers]


def test_auto_rejects_by_out_of_fold_predictions(attentune, files: Path, tiny, tmp_path: Path) -> None:
    flags = (
        "--portfolio",
        "tfidf-linear",
        "--folds",
        3,
        "--time_limit",
        "60s",
        "--jobs",
        1,
        "--reject",
        0.2,
        "--quiet",
    )
    encoder = ("--model_name_or_path", tiny("bert"), "--use_cpu")
    status, out, err = attentune("auto", files / "train.csv", *encoder, *flags, "--output_dir", tmp_path / "best")
    assert status == 0, err
    facts = numbers(tmp_path / "best")
    assert "rejected as of no class: " in out
    assert "rejected as of no class: " in (tmp_path / "best/README.md").read_text()
    rows, right = 60, facts["rows"]
    leaderboard = json.loads((tmp_path / "best/auto/leaderboard.json").read_text())["leaderboard"]
    assert right == pytest.approx(rows * leaderboard[0]["score"])
    assert (facts["score"], facts["share"]) == ("energy", 0.2)
    assert facts["lost"] == pytest.approx((int(0.2 * (right + 1) + 1e-9) - 1) / right)
    assert "rejected" in predict(tmp_path / "best", ["a"])[0]
    again = attentune("calibrate", tmp_path / "best", "--reject", "--validation_file", files / "dev.csv")
    assert (again[0], numbers(tmp_path / "best")["share"]) == (0, 0.05)


def test_a_rejection_is_removed_and_nothing_else(attentune, files: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(files / "run", tmp_path / "run"))
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    out, _ = attentune.done("calibrate", run, "--reject", "none")
    assert out == f"{run}: Every text gets a class; none is rejected.\n"
    after = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert {name for name in before if before[name] != after.get(name)} == {
        *("rejection.json", "rejection.safetensors", "README.md")
    }
    assert "none is rejected" in (run / "README.md").read_text()
    assert "rejected" not in predict(run, ["a"])[0]


def test_what_cannot_reject_is_refused(attentune, files: Path, tmp_path: Path) -> None:
    other = ("--out_of_scope_file", files / "other.csv")
    assert "--out_of_scope_file: goes with --reject" in attentune.refused("calibrate", files / "plain", *other)
    checkpoint = Path(shutil.copytree(files / "plain", tmp_path / "run"))
    (checkpoint / "manifest.json").write_text("{}")
    assert "is a checkpoint" in attentune.refused("calibrate", checkpoint, "--reject")
    with pytest.raises(ConfigError, match="--split"):
        reject_run(files / "plain", 0.1, split="train")
