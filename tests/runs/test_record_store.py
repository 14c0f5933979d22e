"""Records of runs; the time that is left; comparisons from Python; trained runs compared on the same rows."""

import dataclasses
import json
import signal
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

import attentune
import attentune.runs.records as ledger_module
from attentune.config import load_config, to_dict
from attentune.errors import CheckpointError, ConfigError, StorageError
from attentune.metrics.metrics import METRICS
from attentune.results import RunResult
from attentune.runs.grid import Run
from attentune.runs.progress import ComparisonProgress, as_duration
from attentune.runs.records import RecordStore, RunRecord, failed_record, record_of, unpaired
from attentune.runs.trained_runs import compare_trained_runs, read_run
from attentune.stats.compare import holm
from helpers.comparisons import (
    times_done,
    workers_of,
)
from helpers.interrupted import die, killed
from helpers.samples import settings
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
    folder = run_folder(tmp_path / "run", torn=True)
    record = record_of(RUN, wanted, result(scores), folder, wall_seconds=2.0)
    assert (record.metric, record.score) == expected
    assert record.curve == [{key: value for key, value in LOG[0].items() if key != "grad_norm"}]
    assert record.scored == [{"step": 2, "epoch": 0, "validation": {"accuracy": 0.5}}]
    assert record.labels_by_epoch == [{"epoch": 0, "flipped": 4, "seconds": 0.1}]
    assert (record.config["training"]["resume"], record.config["training"]["output_dir"]) == (False, None)
    assert record.config["training"]["learning_rate"] == 1e-4, "the run's settings, not those left open in the grid"
    assert record.notes == ["a note"]


def test_records_are_read_back_as_they_were_written_beside_their_predictions(tmp_path):
    record_store = RecordStore(tmp_path)
    folder = run_folder(record_store.run_folder(RUN))
    record = record_of(RUN, None, result({"validation": {"accuracy": 0.5}}), folder, wall_seconds=2.0)
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
    run_folder(folder)
    for keep in (True, False):
        record_store.tidy(RUN, keep=keep)
        assert folder.exists()  # what was kept stays
    record_store.file(RUN).write_text("{}")
    with pytest.raises(CheckpointError, match=r"seed-3.json: is no record of a run .* Delete it, and its predictions"):
        record_store.records()


def test_the_first_record_counts_but_for_one_of_a_failure(tmp_path):
    record_store = RecordStore(tmp_path)
    failure = failed_record(RUN, load_config(), RuntimeError("so it was"), tmp_path, wall_seconds=1.0)
    assert record_store.write(failure, tmp_path)
    assert failure.error["message"] == "so it was"
    assert "RuntimeError: so it was" in failure.error["traceback"]
    assert not record_store.write(failure, tmp_path)
    assert record_store.write(small_record(RUN, score=0.6), tmp_path)
    assert not record_store.write(small_record(RUN, score=0.7), tmp_path)
    assert not record_store.write(failure, tmp_path)
    assert record_store.load(RUN).score == 0.6


@pytest.mark.parametrize("function", ["write_bytes", "write_text"])
def test_killed_while_it_is_written_it_is_whole_or_not_there(tmp_path, monkeypatch, function):
    record_store = RecordStore(tmp_path)
    folder = run_folder(record_store.run_folder(RUN))
    record = record_of(RUN, None, result({"validation": {"accuracy": 0.5}}), folder, wall_seconds=2.0)
    with monkeypatch.context() as patched:
        patched.setattr(ledger_module, function, lambda *arguments: die())
        assert killed(lambda: record_store.write(record, folder)) == signal.SIGKILL
    assert record_store.records() == []
    assert record_store.write(record, folder)
    assert record_store.records() == [record]


def test_methods_that_saw_other_rows_are_told():
    def record(method: str, rows: str) -> RunRecord:
        made = small_record(dataclasses.replace(RUN, method=method))
        return dataclasses.replace(made, data_fingerprint={"train": rows})

    assert unpaired([record("bert", "a"), record("sesame", "a")]) == []
    found = unpaired([record("bert", "a"), record("sesame", "b"), record("ssa-co", "a")])
    assert found == ["cola, 250 rows, seed 3: bert, ssa-co | sesame"]


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


def test_durations_in_words():
    words = {None: "", 40.4: "about 40 s", 61: "about 1 min", 3599: "about 1 h 0 min", 7500: "about 2 h 5 min"}
    assert {seconds: as_duration(seconds) for seconds in words} == words


# Comparisons from Python, and those that the disk or the kernel stops.


def overrides(folder: Path, encoder: Path) -> dict[str, object]:
    values = settings(folder, encoder, training__num_train_epochs=1)
    return {name: value for name, value in values.items() if name != "training.output_dir"}


@pytest.mark.integration
def test_compare_from_python_and_a_disk_that_refuses(tiny, tmp_path):
    folder, given = tmp_path / "comparison", overrides(tmp_path, tiny("bert"))
    methods = {"bert": {"preset": "bert"}, "careful": {"preset": "bert", "set": {"training.learning_rate": 1e-6}}}
    quiet = {"display": ComparisonProgress(quiet=True), "jobs": 1, "overrides": given, "settings": methods}
    first = attentune.compare(folder, presets=["bert"], seeds=[4], **quiet)
    assert [(record.run.method, record.seed, record.is_done) for record in first] == [("bert", 4, True)]
    # Where runs should be trained there is a file.
    (folder / "runs").write_text("in the way")
    with pytest.raises(StorageError, match=r"runs.*: is a file, so no run folder can be made there"):
        attentune.compare(folder, seeds=[4], **quiet)
    assert len(RecordStore(folder).records()) == 1  # that is no failure of the run
    (folder / "runs").unlink()
    # Where its records should go, too.
    blocked = RecordStore(folder).file(first[0].run).parent.parent / "careful"
    blocked.write_text("in the way")
    with pytest.raises(StorageError, match=r"careful.* could not be written"):
        attentune.compare(folder, seeds=[4], **quiet)
    assert not workers_of(folder)
    blocked.unlink()
    both = attentune.compare(folder, seeds=[4], **quiet)
    assert [record.run.method for record in both] == ["bert", "careful"]
    assert both[0] == first[0]
    assert both[1].config["training"]["learning_rate"] == 1e-6
    assert set(times_done(folder).values()) == {1}  # what was trained was not trained again


# Trained runs on the same rows: tests by hand, alignment by id, kinds of labels, and refusals.


def write(file, rows, header="id,label,prediction"):
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(file)


def drawn(rows=200, seed=0, chance=0.8, labels_seed=9):
    labels = np.array(["bad", "good"])[np.random.default_rng(labels_seed).integers(2, size=rows)]
    right = np.random.default_rng(seed).random(rows) < chance
    given = [label if ok else ("good" if label == "bad" else "bad") for label, ok in zip(labels, right, strict=True)]
    return [(f"r{n}", label, prediction) for n, (label, prediction) in enumerate(zip(labels, given, strict=True))]


def compared(paths, **options):
    return compare_trained_runs([read_run(path) for path in paths], **options)


def test_the_tests_are_those_of_the_counts_by_hand(tmp_path):
    first, second = drawn(seed=1, chance=0.7), drawn(seed=2, chance=0.85)
    paths = [write(tmp_path / "a.csv", first), write(tmp_path / "b.csv", second)]
    found = compared(paths, metrics=("accuracy", "f1"))
    accuracy, f1 = found.tests
    only_second = [n for n in range(200) if first[n][1] != first[n][2] and second[n][1] == second[n][2]]
    only_first = [n for n in range(200) if first[n][1] == first[n][2] and second[n][1] != second[n][2]]
    assert accuracy.difference == pytest.approx((len(only_second) - len(only_first)) / 200)
    counts = len(only_first) + len(only_second)
    assert (accuracy.mcnemar.only_first, accuracy.mcnemar.only_second) == (len(only_first), len(only_second))
    statistic = (len(only_first) - len(only_second)) ** 2 / counts
    assert accuracy.mcnemar.p == pytest.approx(chi2.sf(statistic, 1))
    # The normal interval of a mean of 200 differences.
    spread = 1.96 * np.sqrt((counts / 200 - accuracy.difference**2) / 200)
    np.testing.assert_allclose(
        [accuracy.low, accuracy.high], [accuracy.difference - spread, accuracy.difference + spread], atol=0.006
    )
    assert [accuracy.p_holm, f1.p_holm] == pytest.approx(list(holm([accuracy.p, f1.p])))
    labels, given = (np.array([row[k] == "good" for row in second]).astype(int) for k in (1, 2))
    assert f1.second_score == pytest.approx(METRICS["f1"].score(labels, given))
    assert f1.mcnemar is None
    assert accuracy.marks == "**"
    (changed,) = found.changed
    assert (changed.better.tolist(), changed.worse.tolist()) == (only_second, only_first)
    assert len(changed.both_wrong) == 0


def test_rows_are_paired_by_id_and_rows_that_one_run_lacks_are_left_out(tmp_path):
    first, second = drawn(seed=1), drawn(seed=2)
    whole = compared([write(tmp_path / "a.csv", first[:150]), write(tmp_path / "b.csv", second[:150])])
    mixed = [second[n] for n in np.random.default_rng(0).permutation(200)]
    found = compared([write(tmp_path / "a.csv", first[:150]), write(tmp_path / "b.csv", mixed)])
    assert [one.difference for one in found.tests] == [one.difference for one in whole.tests]
    assert [one.p for one in found.tests] == [one.p for one in whole.tests]
    assert found.notes == (f"{tmp_path}/b.csv: 50 of 200 rows are left out, since not all runs predict them.",)


def test_classes_are_matched_by_name_and_rows_may_have_several_labels(tmp_path):
    """Files with probabilities list their classes in an order of their own."""
    rows = [(f"r{n}", label, given) for n, (label, given) in enumerate([("x", "x"), ("y", "x"), ("z", "z")] * 10)]
    one = write(tmp_path / "a.csv", [(*row, 0, 0, 0) for row in rows], "id,label,prediction,p_x,p_y,p_z")
    two = write(tmp_path / "b.csv", [(*row, 0, 0, 0) for row in rows], "id,label,prediction,p_z,p_x,p_y")
    found = compared([one, two])
    assert [test.metric for test in found.tests] == ["accuracy", "f1_macro"]
    assert all(test.difference == 0 for test in found.tests)
    assert found.text_of(1, 2) == "z"
    # Several labels a row.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    rows = [(n, "a|b" if n % 2 else "c", "a|b" if n % 3 else "c|a") for n in range(60)]
    header = "id,labels,predictions"
    found = compared([write(tmp_path / "one.csv", rows, header), write(tmp_path / "two.csv", rows[::-1], header)])
    assert [one.metric for one in found.tests] == ["f1_micro", "subset_accuracy"]
    assert found.label_of(1) == "a|b"
    assert found.text_of(0, 0) == "a|c"


def test_scores_are_compared_by_correlation_and_error(tmp_path):
    generator = np.random.default_rng(3)
    labels = generator.normal(size=80)
    near, far = (labels + width * generator.normal(size=80) for width in (0.2, 1.0))
    paths = []
    for name, given in (("far", far), ("near", near)):
        rows = [(n, f"{a:.5f}", f"{b:.5f}") for n, (a, b) in enumerate(zip(labels, given, strict=True))]
        paths.append(write(tmp_path / f"{name}.csv", rows))
    found = compared(paths)
    assert [one.metric for one in found.tests] == ["pearson", "spearmanr", "mean_squared_error"]
    for one in found.tests:
        assert one.difference > 0
        assert one.low > 0
        assert one.marks == "**"
    assert found.tests[2].p_wilcoxon < 0.001
    changed = found.changed[0]
    assert len(changed.better) + len(changed.worse) == 80
    gains = np.abs(far - labels) - np.abs(near - labels)
    assert changed.better[0] == gains.argmax()


def test_runs_are_told_apart_and_each_is_compared_with_the_first(tmp_path):
    paths = [write(tmp_path / f"{n}.csv", drawn(seed=n)) for n in range(3)]
    found = compared(paths, metrics=("accuracy",))
    assert [(one.first, one.second) for one in found.tests] == [("0", "1"), ("0", "2")]
    assert [one.p_holm for one in found.tests] == pytest.approx(list(holm([one.p for one in found.tests])))
    # Runs of one name are told apart by their paths.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    paths = [write(tmp_path / name / "test.csv", drawn(seed=n)) for n, name in enumerate(("one", "two"))]
    assert [run.name for run in compared(paths).runs] == [f"{tmp_path}/one/test.csv", f"{tmp_path}/two/test.csv"]
    # Equal runs differ in nothing.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-3"
    tmp_path.mkdir()
    paths = [write(tmp_path / name, drawn()) for name in ("a.csv", "b.csv")]
    for one in compared(paths).tests:
        assert (one.difference, one.p, one.marks) == (0.0, 1.0, "")


REFUSALS = {
    "other labels": ([(0, "a", "a"), (1, "b", "b")], [(0, "a", "a"), (1, "a", "b")], "row '1' has the label 'b'"),
    "no common rows": ([(0, "a", "a"), (1, "b", "b")], [(7, "a", "a"), (8, "b", "b")], "have 0 row in common"),
    "equal ids": ([(0, "a", "a"), (0, "b", "b")], [(0, "a", "a"), (1, "b", "b")], "ids that occur twice"),
    "two kinds": (
        [(0, "a", "a"), (1, "b", "b")],
        [(0, 0.5, 0.4), (1, 0.1, 0.2)],
        "some have classes, some have scores",
    ),
    "no labels": ([(0, "", "a"), (1, "b", "b")], [(0, "a", "a"), (1, "b", "b")], "some rows have no label"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_runs_that_cannot_be_compared_are_refused(tmp_path, case):
    first, second, says = REFUSALS[case]
    with pytest.raises(CheckpointError, match=says):
        compared([write(tmp_path / "a.csv", first), write(tmp_path / "b.csv", second)])


def test_numbers_with_nan_are_classes_or_scores(tmp_path):
    for texts, names in ((("1", "nan"), ("1", "nan")), (("0.5", "nan"), ()), (("0.5", "inf"), ())):
        (tmp_path / "a.csv").write_text("id,label,prediction\n" + "".join(f"{one},{one},{one}\n" for one in texts))
        assert read_run(str(tmp_path / "a.csv")).predictions.names == names


def test_other_mistakes_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", drawn())
    with pytest.raises(ConfigError, match="got 1 run, expected at least two"):
        compared([path])
    with pytest.raises(ConfigError, match=r"--metrics: got 'pearsn', expected one of accuracy"):
        compared([path, path], metrics=("pearsn",))
    with pytest.raises(CheckpointError, match="there is no such file or folder"):
        read_run(str(tmp_path / "b.csv"))
    (tmp_path / "run").mkdir()
    write(tmp_path / "run/predictions_test.csv", drawn())
    with pytest.raises(CheckpointError, match=r"no predictions of the validation rows.*has those of test: name one"):
        read_run(str(tmp_path / "run"))
    for text in ("", "id,label\n1,2\n", "text,label,prediction\n1,2,3\n"):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(CheckpointError, match="holds no predictions with labels"):
            read_run(str(tmp_path / "bad.csv"))
