"""Runs that fit a baseline, and the comparison of a model with baselines at the end of its training."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attentune import compare
from attentune.baselines.registry import load_run
from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.data.load import load_data
from attentune.errors import ConfigError
from attentune.inference.predictions import predictions_csv
from attentune.report.contents import make_report
from attentune.report.document import Table
from attentune.report.load import collect
from attentune.results import RunResult
from attentune.training.baselines import _scored, find_failures
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import settings

CLASSES, SCORES = LabelSpace("classification", ("bad", "good")), LabelSpace("regression")


@pytest.fixture(scope="module")
def encoder(tiny: Callable[..., Path]) -> Path:
    return tiny("bert")


def trained(overrides: dict[str, object], preset: str | None = None) -> RunResult:
    return train(load_config(overrides=overrides, preset=preset), display=ProgressDisplay(quiet=True))


def failures(labels: Sequence, predictions: Sequence, others: dict[str, Sequence], space: LabelSpace) -> list[str]:
    metric = "pearson" if space is SCORES else "accuracy"
    labels = np.array(labels)
    model = _scored("this model", metric, labels, np.array(predictions))
    baselines = [_scored(name, metric, labels, np.array(values)) for name, values in others.items()]
    return find_failures(model, baselines, metric=metric, labels=labels, label_space=space, seed=1)


@pytest.mark.parametrize("name", ["majority", "tfidf-linear", "frozen-linear"])
def test_a_preset_of_a_baseline_writes_an_ordinary_run_folder(name: str, encoder: Path, tmp_path: Path) -> None:
    config = load_config(overrides=settings(tmp_path, encoder), preset=name)
    result = train(config, display=ProgressDisplay(quiet=True))
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {
        ".lock", "README.md", "baseline.json", "baseline.safetensors", "config.yaml", "metrics.json",
        "predictions_validation.csv", "run.json",
    }  # fmt: skip
    assert RunResult.load(run / "run.json") == result
    assert load_config(run / "config.yaml", as_record=True).baseline == name
    assert f"The baseline `{name}`" in (run / "README.md").read_text()
    data = load_data(config.data, seed=config.training.seed)
    logits_NC = load_run(run).baseline.logits(data.splits["validation"])
    text = predictions_csv(data.splits["validation"], logits_NC, data.label_space)
    assert (run / "predictions_validation.csv").read_text() == text
    assert result.scores["validation"]["accuracy"] == np.mean(
        logits_NC.argmax(axis=1) == data.splits["validation"].labels
    )
    assert result.baselines is None
    again = train(replace(config, training=replace(config.training, resume=True)), display=ProgressDisplay(quiet=True))
    assert again == result  # a finished run is not repeated


def test_train_ends_with_a_table_of_baselines_that_its_report_has_and_strict_exits_with_3(attentune, encoder, tmp_path):
    given = settings(tmp_path, encoder)
    flags = [
        "--train_file", given["data.train_file"], "--validation_file", given["data.validation_file"], "--use_cpu",
        "--model_name_or_path", encoder, "--max_length", 32, "--max_steps", 1, "--learning_rate", "1e-7",
        "--text_column", "text", "--label_column", "label",
    ]  # fmt: skip
    out, err = attentune.done("train", *flags, "--output_dir", tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    table = out.split("\n\n")[1].splitlines()
    assert table[0].split()[:2] == ["method", "accuracy"]
    assert [line.split("  ")[0] for line in table[2:6]] == ["majority", "tfidf-linear", "frozen-linear", "this model"]
    assert table[6] == "validation, 20 rows; Wilson intervals over rows."
    scores = {one["name"]: one["score"] for one in record["baselines"]["methods"]}
    assert scores["this model"] == record["scores"]["validation"]["accuracy"]
    for one in record["baselines"]["methods"]:
        assert one["low"] <= one["score"] <= one["high"]
        assert one["seconds"] >= 0
    assert scores["tfidf-linear"] > 0.8  # the label follows from one word
    # A model after one tiny step has learnt nothing.
    assert any("not measurably better than the majority baseline" in text for text in record["warnings"])
    best = max((name for name in scores if name not in ("majority", "this model")), key=lambda name: scores[name])
    assert "warning: Try more steps (--num_train_epochs)" in err
    assert f"another preset, or --preset {best}." in err
    card = (tmp_path / "run" / "README.md").read_text()
    assert "## Baselines" in card
    assert "| tfidf-linear | " in card
    report = make_report(collect([str(tmp_path / "run")]))
    table = next(part for section in report.sections for part in section.parts if part.name == "baselines")
    assert isinstance(table, Table)
    assert (table.rows[0][1], table.rows[-1][1]) == ("constant answer", report.question.split()[3])
    assert table.rows[-1][3] == f"{100 * scores['this model']:.1f}"
    assert [sentence.split(": ", 1)[1] for sentence in report.warnings] == record["warnings"]
    status, out, _ = attentune("train", *flags, "--output_dir", tmp_path / "none", "--baselines", "none", "--strict")
    assert status == 3
    assert "method" not in out
    none = json.loads((tmp_path / "none" / "run.json").read_text())
    assert none["baselines"] is None
    assert none["scores"] == record["scores"]  # baselines do not change the model
    assert any("majority" in text for text in none["warnings"])


@pytest.fixture(scope="module")
def pairs(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings of a run on pairs, which are alike if they have the same words."""
    folder = tmp_path_factory.mktemp("pairs")
    given = settings(folder, encoder, data__text_pair_column="other")
    for split in ("train", "validation"):
        texts = [line.split(",")[1] for line in Path(given[f"data.{split}_file"]).read_text().splitlines()[1:]]
        others = [" ".join(text.split()[::-1]) if row % 2 else texts[row - 1] for row, text in enumerate(texts)]
        rows = enumerate(zip(texts, others, strict=True))
        lines = [f"{text},{other},{('other', 'same')[row % 2]}" for row, (text, other) in rows]
        Path(given[f"data.{split}_file"]).write_text("\n".join(["text,other,label", *lines]) + "\n")
    return given | {"data.text_column": "text", "data.label_column": "label"}


def test_a_model_of_pairs_is_compared_with_the_baselines_of_pairs_too(pairs: dict[str, str], tmp_path: Path) -> None:
    changes = {"training.output_dir": str(tmp_path / "run"), "training.baselines": "auto", "training.max_steps": 1}
    result = trained(pairs | changes)
    assert result.baselines is not None
    scores = {one["name"]: one["score"] for one in result.baselines["methods"]}
    assert list(scores) == ["majority", "tfidf-linear", "frozen-linear", "cosine", "token-alignment", "this model"]
    assert scores["token-alignment"] == 1.0
    as_method = trained(pairs | {"training.output_dir": str(tmp_path / "method")}, "token-alignment")
    assert as_method.scores["validation"]["accuracy"] == scores["token-alignment"]


@pytest.mark.parametrize("name", ["cosine", "token-alignment"])
def test_baselines_of_pairs_refuse_single_texts_before_an_encoder_is_loaded(name, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr("attentune.baselines.frozen.FrozenEncoder._load", None)
    changes = {"data.text_pair_column": None, "training.output_dir": str(tmp_path / "run")}
    with pytest.raises(ConfigError, match=f"{name} needs pairs of texts, but the rows are single texts"):
        trained(pairs | changes, name)
    assert not (tmp_path / "run").exists()


def test_a_baseline_that_fails_does_not_cost_the_run(encoder, tmp_path, monkeypatch, capfd):
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("attentune.baselines.registry.TfidfLinear._features_to_fit", fail)
    changes = {"training__baselines": "tfidf-linear,cosine,columns-linear,frozen-linear", "training__max_steps": 1}
    result = train(load_config(overrides=settings(tmp_path, encoder, **changes)))
    told = " ".join(capfd.readouterr().err.split())
    assert "the baseline tfidf-linear could not be fitted (RuntimeError: out of memory); it is left out" in told
    assert "the baseline cosine is left out: it needs pairs of texts, but the rows are single texts" in told
    assert "the baseline columns-linear is left out: it needs columns beside the text (--extra_columns)" in told
    assert result.baselines is not None
    assert [one["name"] for one in result.baselines["methods"]] == ["frozen-linear", "this model"]


@pytest.mark.integration
def test_comparisons_have_baselines_as_methods(encoder: Path, tmp_path: Path) -> None:
    given = settings(tmp_path, encoder, training__max_steps=1)
    del given["training.output_dir"]
    records = compare(tmp_path / "out", presets=["majority", "tfidf-linear"], seeds=1, overrides=given, jobs=1)
    assert [record.status for record in records] == ["done"] * 2
    by_name = {record.run.method: record for record in records}
    assert by_name["tfidf-linear"].score > by_name["majority"].score
    assert by_name["majority"].predictions


def test_a_model_of_one_class_is_named() -> None:
    found = failures([0, 1] * 30, [1] * 60, {"majority": [0] * 60}, CLASSES)
    assert found[0] == "This model predicts the class good for 60 of 60 validation rows."
    assert "not measurably better than the majority baseline: accuracy 0.5000 and 0.5000 on 60" in found[1]
    assert "--preset frozen-linear" in found[-1]
    nearly = failures([0, 1] * 100, [0] + [1] * 199, {}, CLASSES)
    assert nearly[0].startswith("This model predicts the class good for 199 of 200")
    space, labels = LabelSpace("multi_label", ("a", "b")), np.tile([[0, 1], [1, 0]], (20, 1))
    model = _scored("this model", "f1_micro", labels, np.tile([[1, 0]], (40, 1)))
    sets = find_failures(model, [], metric="f1_micro", labels=labels, label_space=space, seed=1)
    assert sets[0] == "This model predicts the labels a for 40 of 40 validation rows."


def test_constant_scores_are_named() -> None:
    labels = np.linspace(0, 5, 40)
    found = failures(labels, np.full(40, 2.5), {"majority": np.full(40, 2.5)}, SCORES)
    assert found[0] == "This model predicts nearly the same score (2.5) for all 40 validation rows."
    assert "pearson undefined and undefined" in found[1]


def test_a_model_below_a_baseline_is_named() -> None:
    labels = [0, 1] * 50
    half = [label if row % 4 else 1 - label for row, label in enumerate(labels)]
    found = failures(labels, half, {"majority": [0] * 100, "tfidf-linear": labels}, CLASSES)
    assert len(found) == 2
    assert "This model is worse than the baseline tfidf-linear: accuracy 0.7500 and 1.0000 on 100" in found[0]


def test_a_good_model_gets_no_warning() -> None:
    labels = [0, 1] * 30
    wrong = [1 - label if row < 6 else label for row, label in enumerate(labels)]
    assert failures(labels, wrong, {"majority": [0] * 60, "tfidf-linear": labels[::-1]}, CLASSES) == []
    # Almost all rows have one label: predicting it is no collapse.
    assert failures([1] * 2 + [0] * 198, [1] + [0] * 199, {}, CLASSES) == []
    scores = np.linspace(0, 5, 40)
    assert failures(scores, scores + np.sin(scores * 9), {"majority": np.full(40, 2.5)}, SCORES) == []
