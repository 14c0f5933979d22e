"""Task-specific attention from the command line: Quora, STS and SST-5, saved, loaded, explained, resumed."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from attentune import Predictor
from attentune.token_labels.listing import list_tokens
from helpers.samples import write_reviews
from helpers.tiny_models import rows_of

Tiny = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]
QUICK = ("--num_train_epochs", "1", "--max_length", "32", "--learning_rate", "1e-3", "--use_cpu")
# Everything at once: blurred, re-weighted layers under a token gate whose labels ask the model, and cross-attention.
ALL = (
    "--set=model.blur.where=context", "--set=model.blur.sigma=0.5", "--set=model.layer_mix.squeeze=true",
    "--set=model.layer_mix.kind=weighted",
    "--set=model.token_gate.kind=ssa", "--set=labels.generator=flip", "--set=labels.mask_share=0.6",
)  # fmt: skip


def cs224n(task: str, data_dir: Path, rows: int = 48) -> tuple[object, ...]:
    return ("--max_train_samples", rows, "--task", task, "--data_dir", data_dir / "cs224n", "--max_eval_samples", 24)


def write_pairs(path: Path, rows: int) -> Path:
    singles = list(csv.DictReader(write_reviews(path, rows).open()))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sentence1", "sentence2", "label"])
        writer.writerows([row["text"], "a film that was good", row["label"]] for row in singles)
    return path


@pytest.mark.integration
@pytest.mark.parametrize("task", ["quora", "sts", "sst5"])
@pytest.mark.parametrize("preset", ["task-attention", "bi-encoder-mean"])
def test_the_papers_tasks_train_evaluate_and_predict(
    attentune: Command, tiny: Tiny, tmp_path: Path, data_dir: Path, task: str, preset: str
) -> None:
    run, data = tmp_path / "run", cs224n(task, data_dir)
    flags = ("--preset", preset, "--model_name_or_path", tiny("bert"), "--output_dir", run)
    status, _, err = attentune("train", *data, *flags, *QUICK)
    assert status == 0, err
    written = json.loads((run / "metrics.json").read_text())
    status, out, _ = attentune("evaluate", run, "--format", "json")
    assert (status, json.loads(out)) == (0, {"validation": written["validation"]})
    status, out, _ = attentune("predict", run, *data[2:], "--split", "validation")
    assert (status, out) == (0, (run / "predictions_validation.csv").read_text())
    config = json.loads((run / "config.json").read_text())
    kind = {"bi-encoder-mean": "mean", "task-attention": "self-attention" if task == "sst5" else "cross-attention"}
    assert config["head"]["kind"] == kind[preset]
    assert config["pair_encoding"] == ("cross-encoder" if task == "sst5" else "bi-encoder")
    # Counted as it was trained.
    status, out, _ = attentune("params", run, "--format", "json")
    assert status == 0
    assert json.loads(out)["parts"]["head"]["parameters"] == sum(
        weight.numel() for weight in Predictor.load(run).model.head.parameters()
    )


@pytest.mark.parametrize("preset", ["task-attention", "bi-encoder-mean"])
def test_on_quora_more_than_the_majority_is_learnt(
    attentune: Command, tmp_path: Path, data_dir: Path, preset: str
) -> None:
    """On the embedded encoder; with the poster's plain dot product fewer than half are right."""
    rows = ("--task", "quora", "--data_dir", data_dir / "cs224n", "--max_train_samples", 300)
    flags = ("--preset", preset, "--learning_rate", "1e-4", "--num_train_epochs", "2", "--max_length", "64")
    status, _, err = attentune("train", *rows, "--max_eval_samples", 300, *flags, "--output_dir", tmp_path / "run")
    assert status == 0, err
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["validation"]["accuracy"] > 0.65


def test_ssa_over_blurred_re_weighted_layers_over_cross_attention(
    attentune: Command, tiny: Tiny, tmp_path: Path, data_dir: Path
) -> None:
    run, data = tmp_path / "run", cs224n("quora", data_dir)
    flags = ("--preset", "task-attention", "--model_name_or_path", tiny("bert"), "--output_dir", run, *ALL)
    status, _, err = attentune("train", *data, *flags, *QUICK, "--num_train_epochs", 3)
    assert status == 0, err
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert any(line.get("labels", {}).get("token_loss") for line in log)
    assert attentune("evaluate", run)[0] == 0
    lines = list(list_tokens(run, max_samples=8))
    assert len(lines) == 8
    for line in lines:
        for token in line["tokens"]:
            assert line[token["in"]][token["start"] : token["end"]] == token["text"]
            assert 0 < token["score"] < 1
        assert {token["in"] for token in line["tokens"]} == {"text", "pair"}
    assert any(token["label"] is not None for line in lines for token in line["tokens"])


def test_scores_of_tokens_are_listed_under_their_words(tiny: Tiny, attentune: Command, tmp_path: Path) -> None:
    """What the token head says of a text does not depend on where in the row it stands."""
    train = write_pairs(tmp_path / "train.csv", 24)
    flags = ("--train_file", train, "--preset", "ssa-hybrid", "--pair_encoding", "bi-encoder", "--output_dir")
    status, _, err = attentune("train", *flags, tmp_path / "run", "--model_name_or_path", tiny("bert"), *QUICK)
    assert status == 0, err
    file = tmp_path / "new.csv"
    file.write_text("sentence1,sentence2\na dull film,we saw it in town\nwe saw it in town,a dull film\n")
    rows = rows_of(["a dull film", "we saw it in town"], ["we saw it in town", "a dull film"])
    first, second = (line["tokens"] for line in list_tokens(tmp_path / "run", rows, precision="fp32"))

    def scores(tokens: list[dict], where: str) -> list[tuple[str, float]]:
        return [(token["text"], round(token["score"], 4)) for token in tokens if token["in"] == where]

    assert status == 0
    assert scores(first, "text") == scores(second, "pair") != []
    assert scores(first, "pair") == scores(second, "text") != []


@pytest.mark.integration
def test_a_frozen_bi_encoder_with_pearsons_loss_keeps_its_hidden_states(
    attentune: Command, tiny: Tiny, tmp_path: Path, data_dir: Path
) -> None:
    """The same weights, whether the encoder's output is computed once or in each step."""
    scores = []
    for name, extra in (("kept", ()), ("each-step", ("--set=model.layer_mix.kind=sum-all",))):
        flags = ("--preset", "task-attention", "--model_name_or_path", tiny("bert", layers=1), *extra)
        status, _, err = attentune(
            "train", *cs224n("sts", data_dir), *flags, *QUICK, "--freeze_encoder", "--loss", "pearson",
            "--precision", "fp32", "--set=model.head.dropout=0", "--set=model.dropout=0",
            "--output_dir", tmp_path / name,
        )  # fmt: skip
        assert status == 0, err
        assert ("computed once" in err) == (name == "kept")
        scores.append(json.loads((tmp_path / name / "metrics.json").read_text())["validation"])
        assert attentune("evaluate", tmp_path / name)[0] == 0
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)  # of one layer the sum is the last


@pytest.mark.integration
def test_a_broken_off_run_ends_with_the_same_weights(attentune: Command, tiny: Tiny, tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train.csv", 40)
    flags = ("--train_file", train, "--preset", "task-attention", "--model_name_or_path", tiny("bert"), *QUICK)
    flags = (*flags, "--per_device_train_batch_size", 8, "--save_steps", 2, "--output_dir")
    assert attentune("train", *flags, tmp_path / "whole")[0] == 0
    assert attentune("train", *flags, tmp_path / "again")[0] == 0
    again = tmp_path / "again"
    for name in ("run.json", "model.safetensors"):
        (again / name).unlink()
    latest = max(again.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    for file in latest.iterdir():
        file.unlink()
    latest.rmdir()
    status, _, err = attentune("train", "--resume", "--output_dir", again)
    assert status == 0, err
    assert (again / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_doctor_counts_each_text_of_a_pair(attentune: Command, tiny: Tiny, tmp_path: Path) -> None:
    train = tmp_path / "train.csv"
    long, short = "film " * 20, "a film"
    train.write_text("sentence1,sentence2,label\n" + f"{long},{short},good\n{short},{long},bad\n" * 6)
    flags = ("--train_file", train, "--model_name_or_path", tiny("bert"), "--format", "json", "--max_length", 30)
    cuts = []
    for extra in ((), ("--pair_encoding", "bi-encoder")):
        status, out, _ = attentune("doctor", *flags, *extra)
        assert status == 0
        cuts.append(json.loads(out)["splits"]["train"]["tokens"]["longest"])
    assert cuts[0] > cuts[1] == 22
