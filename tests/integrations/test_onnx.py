"""An exported run says in onnxruntime what it says in PyTorch, for every preset and family, or nothing is written."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from attentune import Predictor, predict
from attentune.config import BlurConfig, load_config, model_preset_names
from attentune.data.dataset import LabelSpace
from attentune.data.tokenization import encode_rows, pad_batch
from attentune.errors import ExportError
from attentune.integrations import onnx as writing
from attentune.integrations.onnx import export_run
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import settings
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, SECOND, TWO, rows_of
from helpers.tiny_runs import blocks, save_run, without_torch

Tiny = Callable[..., Path]
PAIRED = ("bi-encoder-concat", "bi-encoder-cosine", "bi-encoder-mean", "task-attention")
# Two shapes of batches that neither the example nor the check has.
SHAPES = (
    ([FIRST], [LONG]),
    ([SECOND, "", LONG, FIRST + LONG, "a", FIRST, SECOND], [LONG, FIRST, "", "b", FIRST, "", SECOND]),
)


def check(run: Path, folder: Path, **options: Any) -> writing.Export:
    """Export it, and compare what its graph says with PyTorch once more, by another way than the export's own."""
    export = export_run(run, folder, **options)
    assert export.max_difference <= 1e-4
    saved = Predictor.load(run)
    config = saved.model.config
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_inputs()] == list(export.inputs)
    assert [entry.name for entry in session.get_outputs()] == list(export.outputs)
    seen = []
    for texts, pairs in SHAPES:
        rows = rows_of(texts, pairs if config.is_pair else None)
        features = encode_rows(rows, saved.tokenizer, max_length=config.max_seq_length, bi_encoder=config.is_bi_encoder)
        inputs = pad_batch(features, range(len(rows)), pad_token_id=saved.tokenizer.pad_token_id).inputs
        with torch.no_grad():
            expected = saved.model(**inputs)
        logits, *scores = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        np.testing.assert_allclose(logits, expected.logits.numpy(), atol=1e-4, rtol=0)
        assert len(scores) == (expected.token_scores is not None)
        for scored in scores:
            np.testing.assert_allclose(scored, expected.token_scores.numpy(), atol=1e-4, rtol=0)
        seen += list(logits)
    # That this says something: the texts differ.
    assert np.ptp(np.stack(seen), axis=0).max() > 1e-3
    return export


SETTINGS = {preset: load_config(preset=preset).model for preset in model_preset_names()}
OWN_GATE = replace(SETTINGS["ssa-hybrid"].token_gate, share_weights=False)
BLURS = [BlurConfig(where, 0.5, learnable="head") for where in ("context", "value", "scores")]
CASES = [
    *(("bert", settings, preset in PAIRED) for preset, settings in SETTINGS.items()),
    *((family, SETTINGS["ssa-hybrid"], False) for family in FAMILIES),
    *((one, SETTINGS["ssa-hybrid"], True) for one in ("roberta", "deberta-v2", "modernbert")),
    *((one, SETTINGS["task-attention"], True) for one in ("roberta", "deberta-v2", "modernbert")),
    *(("bert", replace(SETTINGS["sesame"], blur=blur, token_gate=OWN_GATE), False) for blur in BLURS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "model", "pair"), CASES)
def test_every_preset_family_pair_encoding_and_place_of_the_blur(tiny, tmp_path: Path, family, model, pair) -> None:
    export = check(save_run(tiny(family), tmp_path / "run", settings=model, is_pair=pair), tmp_path / "served")
    assert export.outputs == (("logits",) if model.token_gate.kind == "none" else ("logits", "token_scores"))
    assert ("second_start" in export.inputs) == (model in [SETTINGS[preset] for preset in PAIRED])


# A run that was trained: its own rows, int8, the command, the documented script.


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    values = settings(folder, tiny("bert"))
    train(load_config(preset="ssa-hybrid", overrides=values), display=ProgressDisplay(quiet=True))
    return folder / "run"


@pytest.fixture(scope="module")
def served(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """The folder that the command writes, its exit status and what it prints."""
    from attentune.cli.main import main

    folder = tmp_path_factory.mktemp("served") / "reviews"
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *words, file=None, **_: printed.extend(words if file is None else ()))
        status = main(["export", str(run), "--format", "onnx", "--output_dir", str(folder), "--quantize", "int8"])
    return folder, status, "\n".join(printed)


@pytest.mark.integration
def test_the_command_prints_the_difference_and_both_scores(served: tuple[Path, int, str]) -> None:
    folder, status, printed = served
    assert status == 0
    assert "max difference from PyTorch: " in printed
    assert "(20 rows, validation)" in printed
    assert "int8, share of rows predicted alike: " in printed
    assert [line.split()[0] for line in printed.splitlines()[-2:]] == ["onnx/model.onnx", "onnx/model_quantized.onnx"]
    sizes = [(folder / name).stat().st_size for name in ("onnx/model_quantized.onnx", "onnx/model.onnx")]
    assert sizes[0] < sizes[1]


@pytest.mark.integration
def test_what_the_folder_holds(served: tuple[Path, int, str], run: Path) -> None:
    folder = served[0]
    about = json.loads((folder / "export.json").read_text())
    assert about["labels"] == ["bad", "good"]
    assert about["max_length"] == 32
    assert about["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    assert about["outputs"] == ["logits", "token_scores"]
    assert about["checked_on"] == "validation"
    accuracy = json.loads((run / "metrics.json").read_text())["validation"]["accuracy"]
    assert about["scores"]["onnx/model.onnx"]["accuracy"] == pytest.approx(accuracy)
    assert {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()} >= {
        "README.md",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "onnx/model.onnx",
        "onnx/model_quantized.onnx",
    }
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["id2label"]) == ("bert", {"0": "bad", "1": "good"})
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert "transformers.js" in (folder / "README.md").read_text()
    assert [file.name for file in folder.parent.iterdir()] == [folder.name]


@pytest.mark.slow
def test_the_documented_function_encodes_pairs_that_are_read_apart(tiny: Tiny, tmp_path: Path) -> None:
    settings = load_config(preset="bi-encoder-mean").model
    run = save_run(
        tiny("bert"), tmp_path / "run", settings=settings, is_pair=True, label_space=LabelSpace("regression")
    )
    export = export_run(run, tmp_path / "served", quantize="int8")
    assert export.checked_on == "made-up texts"
    assert export.int8_agreement is not None
    saved = Predictor.load(run)
    names: dict[str, Any] = {"np": np}
    exec(blocks()[1], names)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tmp_path / "served" / "tokenizer.json"))
    about = json.loads((tmp_path / "served" / "export.json").read_text())
    assert about["texts_apart"]
    firsts, seconds = [FIRST, "", LONG], [LONG, SECOND, ""]
    inputs = names["bi_encoder_inputs"](tokenizer, firsts, seconds, about)
    features = encode_rows(rows_of(firsts, seconds), saved.tokenizer, max_length=128, bi_encoder=True)
    expected = pad_batch(features, range(3), pad_token_id=saved.tokenizer.pad_token_id).inputs
    assert set(inputs) == set(expected) == set(export.inputs)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(inputs[name], tensor.numpy())


# What goes wrong leaves nothing behind.


@pytest.mark.integration
def test_a_graph_that_says_something_else_is_an_error_and_is_not_left_behind(run, tmp_path, monkeypatch):
    """The graph is of a model with another classifier than the one that it is compared with."""
    real = writing.write_graph

    def write_other(model: Any, *arguments: Any, **options: Any) -> int:
        opset = real(model, *arguments, **options)
        with torch.no_grad():
            model.classifier.bias.add_(0.01)
        return opset

    monkeypatch.setattr(writing, "write_graph", write_other)
    with pytest.raises(ExportError, match=r"by onnxruntime its outputs differ by 0\.01, expected at most 1e-04"):
        export_run(run, tmp_path / "deep" / "served")
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.integration
def test_a_model_that_is_no_graph_is_an_error_and_leaves_nothing_behind(run: Path, tmp_path: Path) -> None:
    """What it computes depends on what it has computed, which a graph cannot hold."""
    saved = Predictor.load(run)
    saved.model.classifier.register_forward_hook(lambda module, given, out: out if float(out.sum()) > 0 else -out)
    with pytest.raises(ExportError, match=r"this model cannot be written as ONNX: .*Serve it with attentune.predict"):
        export_run(saved, tmp_path / "served")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_hundred_real_rows_with_a_real_encoder(data_dir: Path, tmp_path: Path) -> None:
    overrides = {
        "data.task": "cola",
        "data.data_dir": str(data_dir / "glue_data"),
        "data.max_train_samples": 64,
        "data.max_length": 64,
        "model.name_or_path": "embedded",
        "training.num_train_epochs": 1,
        "training.output_dir": str(tmp_path / "run"),
        "training.use_cpu": True,
        "data.max_eval_samples": 200,
    }
    train(load_config(preset="ssa-hybrid", overrides=overrides), display=ProgressDisplay(quiet=True))
    export = export_run(tmp_path / "run", tmp_path / "served", quantize="int8")
    assert (export.rows, export.checked_on) == (200, "validation")
    assert export.max_difference <= 1e-4
    assert set(export.scores) == {"onnx/model.onnx", "onnx/model_quantized.onnx"}
    assert export.int8_agreement is not None
    assert export.int8_agreement > 0.9


# The script that serves an exported run without PyTorch predicts what the run predicts


@pytest.mark.integration
@pytest.mark.parametrize(
    ("space", "more", "note"),
    [
        (TWO, {"thresholds": 1}, "the run predicts by thresholds"),
        (LabelSpace("multi_label", ("a", "b", "c")), {"thresholds": 3}, "by thresholds"),
        (LabelSpace("multi_label", ("a", "b", "c")), {}, None),
        (
            LabelSpace("ordinal", ("low", "middle", "high")),
            {"ordinal_prediction": "expected-value"},
            "by mean class numbers",
        ),
        (LabelSpace("ordinal", ("low", "middle", "high")), {"thresholds": 2}, "by thresholds"),
        (LabelSpace("regression"), {}, None),
    ],
    ids=["two classes", "labels", "labels at a half", "ordered", "cut points", "scores"],
)
def test_the_documented_script_predicts_as_the_run_does(tiny, tmp_path, space, more, note, attentune):
    """Where thresholds, or the mean of ordered classes, change what is predicted."""
    run = save_run(tiny("bert"), tmp_path / "run", label_space=space)
    texts = ["the film was lovely", "a dull and awful story", "", "we saw it", "so great " * 9, "in town"]
    file = run / "config.json"
    (run / "config.yaml").write_text("training: {precision: fp32, use_cpu: true}\n")
    if "thresholds" in more:  # in the middle of what the texts have
        file.write_text(json.dumps(json.loads(file.read_text()) | {"calibration_temperature": 0.4}))
        shares = np.array([list(row["probabilities"].values()) for row in predict(run, texts)])
        if space.task_type == "ordinal":
            more = {"thresholds": np.quantile(shares @ np.arange(3), [0.35, 0.65]).tolist()}
        else:
            shares = shares[:, -more["thresholds"] :]
            more = {"thresholds": ((shares.min(axis=0) + shares.max(axis=0)) / 2).tolist()}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"calibration_temperature": 0.4, **more}))
    out, _ = attentune.done("export", run, "--output_dir", tmp_path / "served")
    assert ("do that where you serve it" in out) == (note is not None)
    assert note is None or note in out
    done = without_torch(blocks()[0], str(tmp_path / "served"), *texts)
    assert done.returncode == 0, done.stderr
    lines, expected = [json.loads(line) for line in done.stdout.splitlines()], predict(run, texts)
    if space.task_type == "regression":
        assert [line["prediction"] for line in lines] == pytest.approx(
            [row["prediction"] for row in expected], abs=1e-4
        )
        return
    assert [line["prediction"] for line in lines] == [row["prediction"] for row in expected]
    for line, row in zip(lines, expected, strict=True):
        assert line["probabilities"] == pytest.approx(row["probabilities"], abs=1e-4)
    if "thresholds" in more:
        assert len({str(row["prediction"]) for row in expected}) > 1
