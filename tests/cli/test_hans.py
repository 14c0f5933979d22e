"""`attentune evaluate --suite hans` from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from attentune.plugins import install_command
from attentune.results import to_json
from attentune.suites.hans import HansLine, score_hans
from helpers.glue_samples import write_glue, write_hans, write_run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def place(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a HANS file and three runs of MNLI, one of them trained."""
    from attentune.cli.main import main

    folder = tmp_path_factory.mktemp("hans")
    glue = write_glue(folder / "glue")
    (folder / "hans").mkdir()
    write_hans(folder / "hans" / "heuristics_evaluation_set.txt", 3)
    flags = ["--task", "mnli", "--data_dir", str(glue), "--num_train_epochs", "1", "--max_length", "64", "--use_cpu"]
    encoder = ["--model_name_or_path", str(tiny("bert")), "--quiet"]
    assert main(["train", *flags, *encoder, "--output_dir", str(folder / "trained")]) == 0
    for seed in (1, 2):
        write_run(folder / f"seed-{seed}", tiny("bert"), "mnli", glue, seed=seed)
    return folder


@pytest.fixture(autouse=True)
def _in_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.delenv("ATTENTUNE_DATA", raising=False)


DATA = ("--data", "hans/heuristics_evaluation_set.txt")


def test_tables_of_a_trained_run(attentune: Command) -> None:
    status, out, err = attentune("evaluate", "--suite", "hans", "trained", *DATA)
    assert status == 0, err
    assert out.splitlines()[0] == "36 rows of hans/heuristics_evaluation_set.txt"
    assert "trained  trained  entailment     neutral, contradiction" in out
    lines = [line.split() for line in out.splitlines()]
    report = score_hans(["trained"], DATA[1])

    def shown(line: HansLine) -> list[str]:
        low, high = line.intervals[0]
        return [str(line.rows), f"{line.means[0]:.4f}", f"[{low:.3f},", f"{high:.3f}]"]

    for line in report.cells:
        assert [line.heuristic, line.gold_label, *shown(line)] in lines
    for line in report.subcases:
        assert [line.subcase, line.gold_label, *shown(line)] in lines
    assert ["all", "all", *shown(report.overall)] in lines
    assert "trained: 36 of 36 rows" in err


def test_seeds_of_a_method_in_a_table_with_files_and_figure(attentune: Command, tmp_path: Path) -> None:
    out_dir = tmp_path / "new" / "out"
    runs = ("seed-1", "trained", "seed-2")
    status, out, err = attentune(
        "evaluate", "--suite", "hans", *runs, *DATA, "--names", "bert, ours,bert", "--output-dir", out_dir
    )
    assert status == 0, err
    report = score_hans(runs, DATA[1], methods=["bert", "ours", "bert"])
    assert out.count(" +- ") == len(report.lines)
    first = next(line for line in out.splitlines() if line.startswith("lexical_overlap  entailment"))
    cell = report.cells[0]
    assert first.split()[3:] == [f"{cell.means[0]:.4f}", "+-", f"{cell.deviations[0]:.4f}", f"{cell.means[1]:.4f}"]
    assert {str(path.relative_to(out_dir)) for path in out_dir.rglob("*") if path.is_file()} == {
        *("hans.json", "hans.png"),
        *(f"{run}/predictions.txt" for run in runs),
    }
    assert (out_dir / "hans.json").read_text() == to_json(report.to_dict())
    for number, run in enumerate(runs):
        assert (out_dir / run / "predictions.txt").read_text() == report.predictions_text(number)
    assert (out_dir / "hans.png").read_bytes().startswith(b"\x89PNG")


def test_json_and_a_part_and_the_known_task_s_folder(attentune: Command, tmp_path: Path) -> None:
    flags = ("--data_dir", ".", "--max_samples", "12", "--seed", "3", "--format", "json", "--output_dir", tmp_path)
    status, out, err = attentune("evaluate", "--suite", "hans", "seed-1", *flags)
    assert status == 0, err
    report = json.loads(out)
    assert (report["rows"], report["rows_in_file"], report["seed"]) == (12, 36, 3)
    assert report == score_hans(["seed-1"], data_dir=".", max_samples=12, seed=3).to_dict() | {
        "runs": [{**report["runs"][0], "non_entailment": ["neutral", "contradiction"]}],
        "lines": report["lines"],
    }
    assert out == (tmp_path / "hans.json").read_text()
    assert "a sample of the rows" in err
    assert len((tmp_path / "seed-1" / "predictions.txt").read_text().splitlines()) == 13


def test_without_matplotlib_the_rest_is_written(
    attentune: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attentune.report.charts.importlib.util.find_spec", lambda name: None)
    status, out, err = attentune("evaluate", "--suite", "hans", "seed-1", *DATA, "--output_dir", tmp_path)
    assert status == 0
    assert "lexical_overlap" in out
    assert install_command("explain") in err
    assert {path.name for path in tmp_path.iterdir()} == {"hans.json", "seed-1"}
