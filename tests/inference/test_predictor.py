"""A saved run scores and predicts as when it was trained, in the order of the rows, whatever the batches."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import PartialState

from attentune import Predictor, evaluate, predict
from attentune.config import DataConfig, load_config
from attentune.data.dataset import TaskData, TextRows
from attentune.data.tokenization import Features, encode_rows
from attentune.errors import CheckpointError, ConfigError, DataError, LabelError
from attentune.inference.predictor import predict_rows
from attentune.inference.scoring import ModelEvaluator, make_accelerator, score_rows
from attentune.training.callbacks import ProgressDisplay
from attentune.training.checkpoint import checkpoint_folders
from attentune.training.run import train
from helpers.samples import settings, write_reviews
from helpers.tiny import CORPUS, FAMILIES
from helpers.tiny_models import TWO, Built, build, logits_of, rows_of
from helpers.tiny_runs import save_run

TEXTS = ["the film was lovely", "a dull and awful story", ""]


def trained(folder: Path, encoder: Path, **changes: object) -> Path:
    train(load_config(overrides=settings(folder, encoder, **changes)), display=ProgressDisplay(quiet=True))
    return folder / "run"


def write_pairs(path: Path, rows: int, *, scores: bool = False) -> Path:
    singles = list(csv.DictReader(write_reviews(path, rows).open()))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sentence1", "sentence2", "label"])
        for row in singles:
            label = (4.5 if row["label"] == "good" else 1) if scores else row["label"]
            writer.writerow([row["text"], row["text"][::-1], label])
    return path


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("single"), tiny("bert"), data__label_column="label")


@pytest.fixture(scope="module")
def pair_run(tiny, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for name, rows in (("train", 24), ("validation", 8)):
        write_pairs(folder / f"{name}.csv", rows, scores=True)
    return trained(folder, tiny("roberta"), data__task_type="regression")


def written_rows(run: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run / "predictions_validation.csv").open()))


def test_predict_gives_names_and_probabilities(run):
    found = predict(run, TEXTS)
    assert len(found) == len(TEXTS)
    for line in found:
        assert set(line["probabilities"]) == {"bad", "good"}
        assert sum(line["probabilities"].values()) == pytest.approx(1)
        assert line["prediction"] == max(line["probabilities"], key=line["probabilities"].get)
    assert predict(str(run), TEXTS) == predict(Predictor.load(run), tuple(TEXTS)) == found
    assert predict(run, []) == []
    # The run's own predictions are repeated.
    texts = [row["text"] for row in csv.DictReader((run.parent / "validation.csv").open())]
    for line, row in zip(predict(run, texts), written_rows(run), strict=True):
        assert line["prediction"] == row["prediction"]
        assert line["probabilities"]["good"] == pytest.approx(float(row["p_good"]), abs=1e-6)


def test_predict_scores_of_pairs(pair_run):
    rows = list(csv.DictReader((pair_run.parent / "validation.csv").open()))
    found = predict(pair_run, [row["sentence1"] for row in rows], [row["sentence2"] for row in rows])
    assert all({"prediction"} <= set(line) <= {"prediction", "truncated"} for line in found)
    written = [float(row["prediction"]) for row in written_rows(pair_run)]
    assert [line["prediction"] for line in found] == pytest.approx(written, rel=1e-4)


def test_predict_tells_what_does_not_fit(run, pair_run, tmp_path):
    with pytest.raises(DataError, match="got 2 texts and 1 second texts"):
        predict(pair_run, ["a", "b"], ["c"])
    with pytest.raises(DataError, match=r"got pairs of texts, but .* was trained on single texts"):
        predict(run, ["a"], ["b"])
    with pytest.raises(DataError, match=r"got single texts, but .* was trained on pairs of texts"):
        predict(pair_run, ["a"])
    with pytest.raises(ConfigError, match=r"training\.precision: got 'fp8'"):
        predict(run, TEXTS, precision="fp8")
    with pytest.raises(DataError, match="got one text, expected a list of texts"):
        predict(run, "the film was lovely")
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        predict(tmp_path, ["a"])


def test_evaluate_repeats_the_scores(run, pair_run):
    for folder in (run, pair_run):
        written = json.loads((folder / "metrics.json").read_text())["validation"]
        assert evaluate(folder) == {"validation": written}
        assert evaluate(Predictor.load(folder), precision="fp32")["validation"].keys() == written.keys()
    assert list(evaluate(run, splits=("train", "validation"))) == ["train", "validation"]
    done: list[int] = []
    evaluate(run, progress=done.append)
    assert sum(done) == 20


@pytest.mark.integration
def test_evaluate_on_other_rows(run, tmp_path):
    other = write_reviews(tmp_path / "other.csv", 30, seed=9)
    scores = evaluate(run, DataConfig(validation_file=str(other)))["validation"]
    right = [
        line["prediction"] == row["label"]
        for row in csv.DictReader(other.open())
        for line in predict(run, [row["text"]])
    ]
    assert scores["accuracy"] == pytest.approx(np.mean(right))
    # Labels are matched by name, in whatever order, and by the run's own column names.
    text = other.read_text().replace("id,text,label", "id,text,verdict")
    (tmp_path / "renamed.csv").write_text(text)
    renamed = DataConfig(validation_file=str(tmp_path / "renamed.csv"), text_column="text", label_column="verdict")
    assert evaluate(run, renamed)["validation"] == scores
    (tmp_path / "unknown.csv").write_text(text.replace("bad", "worse"))
    with pytest.raises(LabelError, match=r"unknown\.csv:\d+: unknown labels: 'worse'"):
        evaluate(run, replace(renamed, validation_file=str(tmp_path / "unknown.csv")))


def test_settings_without_data_go_on_top_of_the_run_s_own(run, pair_run):
    whole = evaluate(run)["validation"]
    part = evaluate(run, DataConfig(max_eval_samples=7))["validation"]
    assert set(part) == set(whole)
    assert (part["accuracy"] * 7) % 1 == pytest.approx(0, abs=1e-9)
    saved = Predictor.load(run)
    assert len(saved.data(DataConfig(max_eval_samples=7), ("validation",)).splits["validation"]) == 7
    assert len(saved.data(DataConfig(), ("validation",)).splits["validation"]) == 20
    with pytest.raises(DataError, match="no column 'verdict'"):
        evaluate(run, DataConfig(label_column="verdict"))


def test_evaluate_tells_what_does_not_fit(run, pair_run, tmp_path):
    with pytest.raises(ConfigError, match=r"split: got 'tset', expected train, validation or test\. Did you"):
        evaluate(run, splits=("tset",))
    with pytest.raises(ConfigError, match="no file is given for test"):
        evaluate(run, splits=("test",))
    with pytest.raises(ConfigError, match=r"training\.precision: got 'fp8', expected one of auto, fp32, bf16, fp16"):
        evaluate(run, precision="fp8")
    with pytest.raises(DataError, match="there is no column 'text'"):
        evaluate(run, DataConfig(validation_file=str(write_pairs(tmp_path / "pairs.csv", 8))))
    unlabelled = tmp_path / "test.csv"
    unlabelled.write_text("text\nthe film was lovely\n")
    with pytest.raises(DataError, match="has no labels to score against; use predict"):
        evaluate(run, DataConfig(test_file=str(unlabelled)), splits=("test",))


def test_a_checkpoint_is_a_saved_run_with_its_run_s_settings(run, tmp_path, monkeypatch):
    newest = checkpoint_folders(run)[-1]
    saved = Predictor.load(newest)
    assert saved.config == Predictor.load(run).config
    assert evaluate(newest) == evaluate(run)
    assert predict(newest, TEXTS) == predict(run, TEXTS)
    assert evaluate(checkpoint_folders(run)[0]).keys() == {"validation"}
    monkeypatch.chdir(newest)
    assert evaluate(".") == evaluate(run)
    # Away from its run it predicts all the same, but has no data of its own.
    monkeypatch.chdir(tmp_path)
    shutil.copytree(newest, tmp_path / "model")
    assert [line["prediction"] for line in predict("model", TEXTS)] == [
        line["prediction"] for line in predict(run, TEXTS)
    ]
    with pytest.raises(ConfigError, match="model: does not say what it was trained on; name data"):
        evaluate("model")
    given = DataConfig(validation_file=str(run.parent / "validation.csv"))
    assert evaluate("model", given)["validation"].keys() == {"accuracy", "f1_macro"}


def test_a_run_may_be_moved_and_its_encoder_gone(run, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    config = (moved / "config.yaml").read_text()
    encoder = next(line for line in config.splitlines() if "name_or_path" in line).split(": ")[1]
    (moved / "config.yaml").write_text(config.replace(encoder, "/gone"))
    assert predict(moved, TEXTS) == predict(run, TEXTS)


def test_a_run_answers_in_the_precision_that_is_asked_for_whatever_came_before(run):
    rows = TextRows(("0", "1"), tuple(TEXTS[:2]), None, None, "texts")
    saved = Predictor.load(run)
    exact = predict_rows(Predictor.load(run), rows, precision="fp32")
    rough = predict_rows(saved, rows, precision="bf16")
    assert not np.array_equal(rough, exact)
    assert np.array_equal(predict_rows(saved, rows, precision="fp32"), exact)
    assert np.array_equal(predict_rows(saved, rows, precision="bf16"), rough)


def test_batches_are_by_tokens_unless_the_run_says_how_many_rows(run):
    """A long row by itself, short ones many at a time."""
    saved = Predictor.load(run)
    texts = tuple(["fine"] * 300)
    data = TaskData(
        "input", saved.label_space, (), {"input": TextRows(tuple(map(str, range(300))), texts, None, None, "texts")}
    )
    sizes: list[int] = []
    saved.evaluator(data).predict("input", sizes.append)
    assert sizes == [300]
    sizes.clear()
    training = replace(saved.config.training, per_device_eval_batch_size=64)
    saved = replace(saved, config=replace(saved.config, training=training))
    saved.evaluator(data).predict("input", sizes.append)
    assert max(sizes) == 64


LIGHT = """import sys, attentune
from attentune.cli.main import main
attentune.load_config(preset="bert"), dir(attentune)
for line in ("--help", "train --help", "train --lerning_rate 1", "list presets", "list tasks"):
    assert main(line.split()) == (2 if "lerning" in line else 0)
heavy = {"torch", "transformers", "datasets", "sklearn"} & set(sys.modules)
assert not heavy, heavy"""


def test_what_needs_no_torch_imports_none():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Logits of a split: in the order of its rows, whatever the batches, and the model left as it was.


Tiny = Callable[..., Path]
# Of all lengths, in no order, one of them twice.
SENTENCES = ["Yes.", *CORPUS.splitlines()[:7], "", "No one knows.", "Yes."]


@pytest.fixture(scope="module")
def accelerator():
    made, settled = make_accelerator(precision="fp32", use_cpu=True)
    assert settled == "fp32"
    return made


def features_of(built: Built, texts: list[str] = SENTENCES) -> Features:
    return encode_rows(rows_of(texts), built[1], max_length=128)


def predicted(built: Built, accelerator, batch_size: int, texts: list[str] = SENTENCES, **options) -> np.ndarray:
    pad_token_id = built[1].pad_token_id
    features = features_of(built, texts)
    options |= {"pad_token_id": pad_token_id, "batch_size": batch_size, "accelerator": accelerator}
    return score_rows(built[0], features, **options).logits_NC


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_stand_in_the_order_of_the_rows_whatever_the_batches(tiny: Tiny, family: str, accelerator) -> None:
    built = build(tiny(family))
    expected_NC = np.concatenate([logits_of(built, text).numpy() for text in SENTENCES])
    assert np.ptp(expected_NC[:, 0]) > 1e-3
    for batch_size in (1, 3, 4, 64):
        found_NC = predicted(built, accelerator, batch_size)
        assert found_NC.dtype == np.float32
        np.testing.assert_allclose(found_NC, expected_NC, atol=1e-5, rtol=0)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was_and_progress_counts_every_row(tiny: Tiny, training: bool, accelerator) -> None:
    built, counts = build(tiny("bert")), []
    built[0].train(training)
    modes = {name: module.training for name, module in built[0].named_modules()}
    before = {name: parameter.clone() for name, parameter in built[0].named_parameters()}
    once = predicted(built, accelerator, 4, progress=counts.append)
    assert counts == [4, 4, 3]
    assert {name: module.training for name, module in built[0].named_modules()} == modes
    assert np.array_equal(predicted(built, accelerator, 4), once)  # dropout was off
    assert all(parameter.grad is None for parameter in built[0].parameters())
    assert all(torch.equal(parameter, before[name]) for name, parameter in built[0].named_parameters())
    built[0].train()(**built[1](SENTENCES[1], return_tensors="pt"), labels=torch.tensor([1])).loss.backward()
    assert predicted(built, accelerator, 4, []).shape == (0, 2)


def test_an_evaluator_scores_the_splits_that_have_labels_and_keeps_the_logits(tiny: Tiny, accelerator) -> None:
    built = build(tiny("bert"))
    splits = {
        "validation": rows_of(SENTENCES, labels=[0, 1] * 5 + [0]),
        "test": rows_of(SENTENCES[:3]),
        "empty": rows_of([], labels=[]),
    }
    evaluator = ModelEvaluator(
        model=built[0],
        accelerator=accelerator,
        splits=splits,
        features={name: encode_rows(rows, built[1], max_length=128) for name, rows in splits.items()},
        label_space=TWO,
        metrics=("accuracy", "f1"),
        pad_token_id=built[1].pad_token_id,
        batch_size=4,
    )
    scores = evaluator.score(("validation", "test", "empty"))
    assert list(scores) == ["validation"]
    assert list(scores["validation"]) == ["accuracy", "f1"]
    right = evaluator.logits["validation"].argmax(axis=1) == splits["validation"].labels
    assert scores["validation"]["accuracy"] == pytest.approx(right.mean())
    assert evaluator.logits["test"].shape == (3, 2)

    kept = evaluator.logits["validation"] = -evaluator.logits["validation"]
    assert evaluator.score(("validation",), reuse=True)["validation"]["accuracy"] == pytest.approx(1 - right.mean())
    assert evaluator.score(("validation",)) == scores
    assert evaluator.logits["validation"] is not kept


def test_the_device_is_that_asked_for_whatever_an_earlier_accelerator_had(monkeypatch) -> None:
    # A stand-in for a GPU, which Accelerate finds on a machine that has one.
    make_accelerator(precision="fp32", use_cpu=True)
    PartialState._reset_state()
    with monkeypatch.context() as patched:
        patched.setenv("ACCELERATE_TORCH_DEVICE", "meta")
        assert make_accelerator(precision="fp32")[0].device.type == "meta"
    assert make_accelerator(precision="fp32", use_cpu=True)[0].device.type == "cpu"


def test_an_accelerator_is_kept_until_another_one_changes_what_they_share(tiny: Tiny, tmp_path: Path) -> None:
    saved = Predictor.load(save_run(tiny("bert"), tmp_path))
    first = saved.accelerator("bf16")
    assert saved.accelerator("bf16") is first
    make_accelerator(precision="fp32")
    second = saved.accelerator("bf16")
    assert (second is first, second.mixed_precision) == (False, "bf16")
