"""Records: whole or not there, the first one counts, and rows that were not the same are told."""

import dataclasses
import json
import signal
from pathlib import Path

import pytest

import attentune.runs.records as ledger_module
from attentune.config import load_config, to_dict
from attentune.errors import CheckpointError
from attentune.results import RunResult
from attentune.runs.grid import Run
from attentune.runs.records import RecordStore, RunRecord, failed_record, record_of, unpaired
from helpers.interrupted import die, killed
from helpers.tasks import small_record

RUN = Run("cola", 250, "bert", 3)
LOG = [
    {"step": 2, "epoch": 0, "loss": 0.7, "learning_rate": 1e-3, "grad_norm": 1.0, "tokens": 90, "seconds": 0.5},
    {"step": 2, "epoch": 0, "validation": {"accuracy": 0.5}, "is_best": True},
    {"step": 3, "epoch": 0, "labels": {"flipped": 4, "seconds": 0.1}},
]


def run_folder(folder: Path, *, torn: bool = False) -> Path:
    """What a finished run leaves behind."""
    folder.mkdir(parents=True)
    (folder / "predictions_validation.csv").write_text("id,label,prediction\n1,a,a\n")
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, LOG)) + ('\n{"step": 4, "lo' if torn else "\n"))
    return folder


def result(scores: dict[str, dict[str, float]]) -> RunResult:
    # As a run has it: with the settings that were chosen for it, and its own folder.
    config = to_dict(load_config(overrides={"training.learning_rate": 1e-4, "training.output_dir": "x"}))
    config["training"]["resume"] = True
    return RunResult(scores, {"seconds": 1.0}, None, config, 3, {}, {"train": "x"}, ["a note"])


@pytest.mark.parametrize(
    ("scores", "wanted", "expected"),
    [
        ({"validation": {"matthews_correlation": 0.3, "accuracy": 0.7}}, None, ("matthews_correlation", 0.3)),
        ({"validation": {"f1": 0.3, "accuracy": 0.7}}, "eval_accuracy", ("accuracy", 0.7)),
        ({"test": {"f1": 0.9}, "validation_matched": {"f1": 0.3}}, None, ("f1", 0.3)),
        ({"validation": {"pearson": None}}, None, ("pearson", None)),
        ({}, None, (None, None)),
    ],
)
def test_a_record_has_the_score_to_compare_by_and_what_the_log_tells(tmp_path, scores, wanted, expected):
    overrides = {"data.task": "cola", "training.metric_for_best_model": wanted, "training.output_dir": "x"}
    config = load_config(overrides={**overrides, "training.resume": True})
    folder = run_folder(tmp_path / "run", torn=True)
    record = record_of(RUN, config, result(scores), folder, wall_seconds=2.0)
    assert (record.metric, record.score) == expected
    assert record.curve == [{key: value for key, value in LOG[0].items() if key != "grad_norm"}]
    assert record.scored == [{"step": 2, "epoch": 0, "validation": {"accuracy": 0.5}}]
    assert record.labels_by_epoch == [{"epoch": 0, "flipped": 4, "seconds": 0.1}]
    assert (record.config["training"]["resume"], record.config["training"]["output_dir"]) == (False, None)
    assert record.config["training"]["learning_rate"] == 1e-4, "the run's settings, not those left open in the grid"
    assert record.notes == ["a note"]


def test_records_are_read_back_as_they_were_written_beside_their_predictions(tmp_path):
    record_store, config = RecordStore(tmp_path), load_config(overrides={"data.task": "cola"})
    folder = run_folder(record_store.run_folder(RUN))
    record = record_of(RUN, config, result({"validation": {"accuracy": 0.5}}), folder, wall_seconds=2.0)
    assert record_store.write(record, folder)
    assert record_store.load(RUN) == record
    assert (tmp_path / "records/cola/250/bert" / record.predictions["validation"]).read_text() == (
        folder / "predictions_validation.csv"
    ).read_text()
    others = [Run("cola", None, "bert", 1), Run("cola", 30, "bert", 1), Run("cola", 250, "bert", 1)]
    for other in others:
        assert record_store.write(small_record(other), tmp_path)
    assert [found.run for found in record_store.records()] == [others[1], others[2], RUN, others[0]]
    assert [found.run for found in record_store.records([RUN, Run("rte", None, "bert", 1)])] == [RUN]
    record_store.tidy(RUN)
    assert not (tmp_path / "runs").exists()


def test_the_first_record_counts_but_for_one_of_a_failure(tmp_path):
    record_store = RecordStore(tmp_path)
    failure = failed_record(RUN, load_config(), RuntimeError("so it was"), tmp_path, wall_seconds=1.0)
    assert record_store.write(failure, tmp_path)
    assert failure.error is not None
    assert failure.error["message"] == "so it was"
    assert "RuntimeError: so it was" in failure.error["traceback"]
    assert not record_store.write(failure, tmp_path)
    assert record_store.write(small_record(RUN, score=0.6), tmp_path)
    assert not record_store.write(small_record(RUN, score=0.7), tmp_path)
    assert not record_store.write(failure, tmp_path)
    assert record_store.load(RUN).score == 0.6


@pytest.mark.parametrize("function", ["write_bytes", "write_text"])
def test_killed_while_it_is_written_it_is_whole_or_not_there(tmp_path, monkeypatch, function):
    record_store, config = RecordStore(tmp_path), load_config(overrides={"data.task": "cola"})
    folder = run_folder(record_store.run_folder(RUN))
    record = record_of(RUN, config, result({"validation": {"accuracy": 0.5}}), folder, wall_seconds=2.0)
    with monkeypatch.context() as patched:
        patched.setattr(ledger_module, function, lambda *arguments: die())
        assert killed(lambda: record_store.write(record, folder)) == signal.SIGKILL
    assert record_store.records() == []
    assert record_store.write(record, folder)
    assert record_store.records() == [record]


def test_a_record_that_is_none_is_named_with_its_cure(tmp_path):
    record_store = RecordStore(tmp_path)
    record_store.write(small_record(RUN), tmp_path)
    record_store.file(RUN).write_text("{}")
    with pytest.raises(CheckpointError, match=r"seed-3.json: is no record of a run .* Delete it, and its predictions"):
        record_store.records()


def test_methods_that_saw_other_rows_are_told():
    def record(method: str, rows: str) -> RunRecord:
        made = small_record(dataclasses.replace(RUN, method=method))
        return dataclasses.replace(made, data_fingerprint={"train": rows})

    assert unpaired([record("bert", "a"), record("sesame", "a")]) == []
    found = unpaired([record("bert", "a"), record("sesame", "b"), record("ssa-co", "a")])
    assert found == ["cola, 250 rows, seed 3: bert, ssa-co | sesame"]


def test_kept_run_folders_stay(tmp_path):
    record_store = RecordStore(tmp_path)
    for keep in (True, False):
        folder = run_folder(record_store.run_folder(RUN)) if keep else record_store.run_folder(RUN)
        record_store.tidy(RUN, keep=keep)
        assert folder.exists()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["cola"]


def test_of_the_runs_kept_for_their_score_one_stays(tmp_path):
    record_store = RecordStore(tmp_path)

    def end(seed: int, score: float | None, **keep: bool) -> list[str]:
        run = dataclasses.replace(RUN, seed=seed)
        folder = run_folder(record_store.run_folder(run))
        record_store.write(small_record(run, status="done" if score is not None else "failed", score=score), folder)
        record_store.tidy(run, **keep)
        return sorted(path.name for path in folder.parent.iterdir()) if folder.parent.exists() else []

    assert end(1, None, keep_best=True) == []
    assert end(2, 0.5, keep_best=True) == ["seed-2"]
    assert end(3, 0.4, keep_best=True) == ["seed-2"]
    assert end(5, 0.6, keep_best=True) == ["seed-5"]
    assert end(4, 0.6, keep_best=True) == ["seed-4"]  # of equal ones the lower seed, whatever their order
    assert end(6, 0.6, keep_best=True) == ["seed-4"]
    assert end(7, 0.1, keep=True) == ["seed-4", "seed-7"]
    assert end(8, 0.9, keep_best=True) == ["seed-7", "seed-8"]
