"""`attentune init` writes a configuration that `attentune train --config` takes."""

import csv
from pathlib import Path

import yaml

from helpers.samples import write_reviews


def test_the_configuration_trains(attentune, tiny, tmp_path: Path) -> None:
    write_reviews(tmp_path / "reviews.csv", 60, seed=1)
    target, encoder = tmp_path / "config.yaml", tiny("bert")
    flags = ("--model_name_or_path", encoder, "--output_file", target, "--seed", "7")
    status, out, err = attentune("init", tmp_path / "reviews.csv", *flags)
    assert status == 0, err
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
    status, _, err = attentune("train", "--config", target, *more)
    assert status == 0, err
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert {name: kept["data"][name] for name in said["data"]} == said["data"]

    status, _, err = attentune("init", tmp_path / "reviews.csv", *flags)
    assert status == 2
    assert "exists. Name another one, or replace it with --overwrite" in err
    assert attentune("init", tmp_path / "reviews.csv", *flags, "--overwrite")[0] == 0
    assert target.read_text() == text


def test_odd_names_are_quoted(attentune, tiny, tmp_path: Path) -> None:
    path, target = tmp_path / "so: #fine.csv", tmp_path / "config.yaml"
    texts = [f"the film with number {number} was fine" for number in range(40)]
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [(text, ("no", "yes\nor: 1")[number % 2], "x") for number, text in enumerate(texts)]
        csv.writer(file, delimiter=";").writerows([("null", "yes", "a\nb"), *rows])
    status, _, err = attentune("init", path, "--model_name_or_path", tiny("bert"), "--output_file", target)
    assert status == 0, err
    data = yaml.safe_load(target.read_text())["data"]
    assert (data["train_file"], data["text_column"], data["label_column"]) == (str(path), "null", "yes")
    assert "read as semicolon-separated" in target.read_text()
