"""`attentune submit`, and AX by `attentune evaluate`, from the command line."""

import csv
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from sklearn.metrics import matthews_corrcoef

from helpers.glue_samples import write_glue, write_run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def place(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small GLUE, trained runs of MNLI and CoLA, and untrained ones."""
    from attentune.cli.main import main

    folder = tmp_path_factory.mktemp("submit")
    glue = write_glue(folder / "glue", 30)
    for task in ("mnli", "cola"):
        flags = ["--task", task, "--data_dir", str(glue), "--num_train_epochs", "3", "--max_length", "64", "--use_cpu"]
        flags += ["--learning_rate", "1e-3", "--quiet", "--model_name_or_path", str(tiny("bert"))]
        assert main(["train", *flags, "--output_dir", str(folder / task)]) == 0
    write_run(folder / "wnli", tiny("bert"), "wnli", glue)
    return folder


@pytest.fixture(autouse=True)
def _in_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.delenv("ATTENTUNE_DATA", raising=False)


def predicted(attentune: Command, *words: object) -> list[str]:
    status, out, err = attentune("predict", *words)
    assert status == 0, err
    return [row["prediction"] for row in csv.DictReader(out.splitlines())]


def test_a_zip_of_trained_runs(attentune: Command, tmp_path: Path) -> None:
    file = tmp_path / "submission.zip"
    status, out, err = attentune("submit", "mnli", "cola", "wnli", "--output_file", file, "--allow-partial")
    assert status == 0, err
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name).decode() for name in archive.namelist()}
    assert list(contents) == ["CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "WNLI.tsv", "AX.tsv"]
    glue = ("--data_dir", "glue", "--split")
    told = {
        "MNLI-m.tsv": predicted(attentune, "mnli", "--task", "mnli", *glue, "test_matched"),
        "MNLI-mm.tsv": predicted(attentune, "mnli", "--task", "mnli", *glue, "test_mismatched"),
        "AX.tsv": predicted(attentune, "mnli", "--task", "ax", *glue, "test"),
        "CoLA.tsv": [
            {"acceptable": "1", "unacceptable": "0"}[label]
            for label in predicted(attentune, "cola", "--task", "cola", *glue, "test")
        ],
    }
    for name, words in told.items():
        lines = ["index\tprediction", *(f"{index}\t{word}" for index, word in enumerate(words))]
        assert contents[name] == "\n".join(lines) + "\n"
    assert [line.split() for line in out.splitlines()[2:7]] == [
        ["CoLA.tsv", "30", "cola"],
        ["MNLI-m.tsv", "30", "mnli"],
        ["MNLI-mm.tsv", "31", "mnli"],
        ["WNLI.tsv", "146", "wnli"],
        ["AX.tsv", "30", "mnli"],
    ]
    # The untrained run of WNLI has no scores, and WNLI is not averaged; MNLI counts once, with both of its splits.
    scores = {run: json.loads(Path(run, "run.json").read_text())["scores"] for run in ("mnli", "cola")}
    mnli = [scores["mnli"][f"validation_{kind}"]["accuracy"] for kind in ("matched", "mismatched")]
    mean = (sum(mnli) / 2 + scores["cola"]["validation"]["matthews_correlation"]) / 2
    assert out.splitlines()[-1] == f"mean of 2 GLUE tasks on the validation rows: {100 * mean:.1f}"
    assert "the zip lacks SST-2, MRPC, STS-B, QQP, QNLI, RTE;" in err
    assert "--fill_missing" in err
    assert err.count("the site will not take it") == 4
    assert "WNLI: 146 of 146 rows" in err


def test_ax_is_scored_with_a_model_of_mnli(attentune: Command) -> None:
    ax = ("--task", "ax", "--data_dir", "glue")
    status, out, err = attentune("evaluate", "mnli", *ax, "--format", "json")
    assert status == 0, err
    with open("glue/diagnostic/diagnostic-full.tsv") as file:  # noqa: PTH123
        gold = [row["Label"] for row in csv.DictReader(file, delimiter="\t")]
    told = predicted(attentune, "mnli", *ax, "--split", "validation")
    assert len(gold) == 30
    assert len(set(told)) > 1
    value = json.loads(out)["validation"]["matthews_correlation"]
    assert value == pytest.approx(matthews_corrcoef(gold, told))
    assert value != 0
    # The test file has no labels: it can be predicted, not scored.
    status, out, err = attentune("evaluate", "mnli", *ax, "--split", "test")
    assert (status, out) == (2, "")
    assert "has no labels to score against" in err
    # Two labels do not do for it.
    status, out, err = attentune("evaluate", "wnli", *ax)
    assert (status, out) == (2, "")
    assert "the model does not know the labels 'neutral', 'contradiction'" in err
