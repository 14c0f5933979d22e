"""Each command on each kind of run folder: a model, baselines and an ensemble. It works, or refuses in one message."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attentune.baselines.registry import make_baseline
from attentune.cli.main import main
from attentune.config import DataConfig, ModelConfig, to_dict
from attentune.data.load import load_data
from attentune.inference.ensemble import save_ensemble
from attentune.inference.fusion import Fusion
from attentune.inference.predictor import Predictor, evaluate
from attentune.results import RunResult
from attentune.suites.hans import score_hans
from helpers.ensembles import saved_model, write_run_config
from helpers.hans_samples import write_hans
from helpers.samples import write_reviews

KINDS = ("model", "majority", "tfidf-linear", "frozen-linear", "ensemble")


class No(str):
    """What a refusal says."""


NEEDS_MODEL = {kind: No(f"a {kind} baseline, expected the run folder of a fine-tuned encoder") for kind in KINDS[1:4]}
NEEDS_MODEL["ensemble"] = No("an ensemble of 2, expected the run folder of one model")
NO_METHOD = dict.fromkeys(KINDS[1:], No("looks into one model, which this run is not"))
NO_TOKENS = dict.fromkeys(KINDS[1:], No("level: got token, but leave-one-out deletes whole words"))
NO_ENCODER = dict.fromkeys(KINDS[1:3], No("baseline, which has no encoder. Expected frozen-linear, cosine or a"))
NO_ENCODER["ensemble"] = NEEDS_MODEL["ensemble"]
TEXT = "the film was lovely"

# From a command to what it prints or refuses with, for all runs or by kind of run. RUN, NEW, HANS, OUT are filled in.
COMMANDS: dict[str, Any] = {
    "evaluate RUN": "accuracy",
    "evaluate RUN --format json --precision fp32": '"validation"',
    f"predict RUN --text '{TEXT}'": "id,label,prediction,p_bad,p_good",
    "predict RUN --input_file NEW --output_file OUT/new.csv": "",
    f"explain RUN --text '{TEXT}' --method leave-one-out": "lovely",
    f"explain RUN --text '{TEXT}' --method random,shap --samples 20 --format json": '"method": "shap"',
    f"explain RUN --text '{TEXT}' --method lime --samples 20 --output_file OUT/why.html": "",
    f"explain RUN --text '{TEXT}' --method integrated-gradients --steps 3 --level token": {
        **NO_METHOD, "ensemble": "lovely", "model": "lovely",
    },
    f"explain RUN --text '{TEXT}' --method gradient": {**NO_METHOD, "ensemble": "lovely", "model": "lovely"},
    f"explain RUN --text '{TEXT}' --method leave-one-out --level token": {**NO_TOKENS, "model": "lovely"},
    f"explain RUN --text '{TEXT}' --method attention": {**NO_METHOD, "model": "lovely"},
    f"explain RUN --text '{TEXT}' --layer 1": {**NEEDS_MODEL, "model": "layer 1"},
    f"explain RUN --text '{TEXT}' --method sap": No("method: got 'sap', expected one of"),
    "predict RUN --input_file NEW --explain": {**NEEDS_MODEL, "model": No("attentune fit-explainer")},
    "calibrate RUN": {**NEEDS_MODEL, "model": "Calibrated on 12 rows"},
    "export RUN --output_dir OUT/onnx": NEEDS_MODEL,
    "export RUN --output_dir OUT/hub --format transformers": NEEDS_MODEL,
    "export RUN --output_dir OUT/st --format sentence-transformers": NO_ENCODER,
    "export RUN --output_dir OUT/setfit --format setfit": NO_ENCODER,
    "params RUN": {**NEEDS_MODEL, "model": "total"},
    "submit RUN --output_file OUT/s.zip": No("expected a task of GLUE"),
    "hans RUN --data HANS": No("expected exactly one that is called entailment"),
    "report RUN --output_file OUT/report.html": "",
}  # fmt: skip


# The same for a baseline of pairs, `token-alignment`.
PAIR = f"--text '{TEXT}' --text_pair 'the film was awful'"
PAIR_COMMANDS: dict[str, Any] = {
    "evaluate RUN": "accuracy",
    f"predict RUN {PAIR}": "id,label,prediction,p_bad,p_good",
    f"predict RUN --text '{TEXT}'": No("was trained on pairs: add --text_pair"),
    "predict RUN --input_file NEW --output_file OUT/new.csv": "",
    f"explain RUN {PAIR}": "awful",
    f"explain RUN {PAIR} --method lime --samples 20": "awful",
    f"explain RUN {PAIR} --method gradient": No(
        "looks into one model, which this run is not (token-alignment baseline"
    ),
    "suggest RUN --input_file NEW --count 2": '"row","id","text","text_pair","label","prediction"',
    "suggest RUN --input_file NEW --count 2 --method badge": No("(token-alignment baseline). Use margin."),
    "export RUN --output_dir OUT/x": No("a token-alignment baseline, expected the run folder of a fine-tuned encoder"),
    "export RUN --output_dir OUT/x --format sentence-transformers": No("not from one vector a text. Expected frozen-"),
    "export RUN --output_dir OUT/x --format setfit": No(
        "not from one vector a text. Expected frozen-linear, cosine or"
    ),
    "report RUN --output_file OUT/report.html": "",
}


def write_run(folder: Path, data: DataConfig) -> None:
    """Add the settings and the record of a run to a folder that holds a model of some kind."""
    write_run_config(folder, data=data)
    saved = Predictor.load(folder)
    result = RunResult(
        scores=evaluate(saved), train={"seconds": 1.0}, best=None, config=to_dict(saved.config), seed=42, versions={},
        data_fingerprint={}, notes=[],
    )  # fmt: skip
    (folder / "run.json").write_text(result.to_json())


def fit(folder: Path, name: str, encoder: Path, data: Any) -> Path:
    folder.mkdir(parents=True)
    made = make_baseline(name, encoder=ModelConfig(name_or_path=str(encoder)), max_length=32, seed=1)
    made.fit(data.splits["train"], data.label_space).save(folder)
    return folder


@pytest.fixture(scope="module")
def home(tiny, tmp_path_factory) -> Path:
    """A folder with a run of each kind; the ensemble has a bag of two models and a baseline."""
    home = tmp_path_factory.mktemp("kinds")
    write_reviews(home / "train.csv", 40, seed=1)
    write_reviews(home / "new.csv", 9, seed=3)
    columns = {"text_column": "text", "label_column": "label"}
    files = {"train_file": str(home / "train.csv"), "validation_file": str(write_reviews(home / "dev.csv", 12, seed=2))}
    config = DataConfig(**files, **columns)
    data = load_data(config, seed=1)
    saved_model(home / "model", tiny("bert"), data.label_space)
    for name in KINDS[1:4]:
        fit(home / name, name, tiny("bert"), data)
    bag = [saved_model(home / f"ensemble/bert/{k}", tiny("bert"), data.label_space, seed=k) for k in (1, 2)]
    linear = fit(home / "ensemble" / "linear", "tfidf-linear", tiny("bert"), data)
    fusion = Fusion.weighted("weights", {"bert": 0.5, "linear": 0.5}, "classification")
    save_ensemble(home / "ensemble", {"bert": bag, "linear": [linear]}, fusion, data.label_space, False)
    for kind in KINDS:
        write_run(home / kind, config)
    write_hans(home / "hans.txt", 1)
    return home


@pytest.fixture(scope="module")
def pair_home(tiny, tmp_path_factory) -> Path:
    """A folder with a run of `token-alignment`; the other text of each row is that of the next row."""
    home = tmp_path_factory.mktemp("pairs")
    for name, rows, seed in (("train", 40, 1), ("dev", 12, 2), ("new", 9, 3)):
        header, *lines = csv.reader(write_reviews(home / f"{name}.csv", rows, seed=seed).read_text().splitlines())
        others = [line[1] for line in (*lines[1:], lines[0])]
        lines = [[*header, "other"], *([*line, other] for line, other in zip(lines, others, strict=True))]
        with (home / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(lines)
    columns = {"text_column": "text", "label_column": "label", "text_pair_column": "other"}
    config = DataConfig(train_file=str(home / "train.csv"), validation_file=str(home / "dev.csv"), **columns)
    fit(home / "token-alignment", "token-alignment", tiny("bert"), load_data(config, seed=1))
    write_run(home / "token-alignment", config)
    return home


def filled_in(words: str, home: Path, kind: str, out: Path) -> list[str]:
    """Return the words of a command."""
    filled = {"RUN": str(home / kind), "NEW": str(home / "new.csv"), "HANS": str(home / "hans.txt")}
    return [filled.get(word, word.replace("OUT", str(out))) for word in shlex.split(words)]


def expectations() -> Iterator[Any]:
    """Each command on each kind of run; exports of models have tests of their own."""
    for words, expected in COMMANDS.items():
        for kind in KINDS:
            if not isinstance(expected, dict):
                yield pytest.param(words, kind, expected, id=f"{words}-{kind}")
            elif kind in expected:
                yield pytest.param(words, kind, expected[kind], id=f"{words}-{kind}")


@pytest.mark.parametrize(("words", "kind", "wanted"), list(expectations()))
def test_a_command_on_a_kind_of_run(home, tmp_path, capsys, words, kind, wanted):
    _check(words, home, kind, tmp_path, capsys, wanted)


@pytest.mark.parametrize(("words", "wanted"), PAIR_COMMANDS.items(), ids=PAIR_COMMANDS)
def test_a_command_on_a_baseline_of_pairs(pair_home, tmp_path, capsys, words, wanted):
    _check(words, pair_home, "token-alignment", tmp_path, capsys, wanted)


def _check(words, home, kind, out, capsys, wanted):
    """Run a command; it prints what is wanted, or refuses in one message with it."""
    status = main(filled_in(words, home, kind, out))
    shown = capsys.readouterr()
    if isinstance(wanted, No):
        messages = [line for line in shown.err.splitlines() if line.startswith("attentune: ")]
        assert (status, shown.out, len(messages)) == (2, "", 1)
        assert wanted in messages[0]
        assert not list(out.iterdir())
        return
    assert status == 0, shown.err
    assert wanted in shown.out
    for file in out.rglob("*.csv"):
        rows = list(csv.DictReader(io.StringIO(file.read_text())))
        assert [set(row) for row in rows] == [{"id", "label", "prediction", "p_bad", "p_good"}] * 9
    if "OUT" in words:
        assert any(path.is_file() and path.stat().st_size for path in out.rglob("*"))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_leave_one_out_is_the_default_of_runs_without_a_token_gate(home, capsys, kind):
    assert main(["explain", str(home / kind), "--text", TEXT, "--format", "json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["method"] == "leave-one-out"
    assert [token["text"] for token in line["tokens"]] == TEXT.split()
    assert line["passes"] == 5 * (3 if kind == "ensemble" else 1)
    assert main(["explain", str(home / "model"), "--text", TEXT, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "leave-one-out"


def test_hans_scores_baselines_and_ensembles_of_pairs(tiny, tmp_path, home):
    data = load_data(DataConfig(train_file=str(home / "train.csv"), text_column="text", label_column="label"), seed=1)
    names = replace(data.label_space, names=("neutral", "entailment"))
    pairs = {split: replace(rows, pairs=rows.texts[::-1]) for split, rows in data.splits.items()}
    data = replace(data, label_space=names, splits=pairs)
    fit(tmp_path / "run" / "cosine", "cosine", tiny("bert"), data)
    model = saved_model(tmp_path / "run" / "bert", tiny("bert"), names, is_pair=True)
    fusion = Fusion.weighted("weights", {"bert": 0.5, "cosine": 0.5}, "classification")
    members = {"bert": [model], "cosine": [tmp_path / "run" / "cosine"]}
    save_ensemble(tmp_path / "run", members, fusion, names, True)
    report = score_hans([tmp_path / "run", tmp_path / "run" / "cosine"], home / "hans.txt")
    assert report.rows == 12
    assert report.entails_RN.shape == (2, 12)
