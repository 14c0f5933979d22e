"""`attentune compare`: no run is lost or repeated; its best run, and folds."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from attentune.config import load_config
from attentune.runs.grid import fingerprint_rows, rows_of_task
from helpers.comparisons import (
    checkpointed,
    command,
    finish,
    is_alive,
    kill,
    outcomes,
    start,
    times_done,
    wait_for,
    worker_at,
    workers_of,
)
from helpers.samples import run_here, write_reviews

FLAGS = ("--presets", "bert,ssa-hybrid", "--seeds", "3", "--jobs", "2")
RUNS = 6
LONG = {"training__num_train_epochs": 4, "training__save_steps": 3}


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """A comparison that nothing interrupted: its folder's parent, outcomes, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    out, err = run_here(command(folder, tiny("bert"), *FLAGS, **LONG))
    return folder, outcomes(folder / "comparison"), out + err


def test_two_seeds_are_recorded_and_go_into_the_table(attentune, tiny, tmp_path):
    out, _ = attentune.done(*command(tmp_path, tiny("bert"), "--presets", "bert", "--seeds", "2", "--jobs", "2"))
    found = outcomes(tmp_path / "comparison")
    records = [found[f"records/own/all/bert/seed-{seed}.json"] for seed in (1, 2)]
    assert [record["status"] for record in records] == ["done", "done"]
    assert all(record["score"] == record["scores"]["validation"]["accuracy"] for record in records)
    assert "bert" in out


@pytest.mark.integration
def test_every_run_has_one_record_with_all_that_is_to_be_kept(whole):
    folder, found, _ = whole
    records = [content for name, content in found.items() if name.endswith(".json")]
    assert len(records) == RUNS
    runs = {tuple(record["run"].values()) for record in records}
    assert runs == {("own", None, method, seed) for method in ("bert", "ssa-hybrid") for seed in (1, 2, 3)}
    for record in records:
        assert record["status"] == "done"
        assert record["score"] == record["scores"]["validation"]["accuracy"]
        assert record["train"]["rows"] == 48
        assert record["train"]["tokens"] > 0
        assert record["config"]["training"]["seed"] == record["seed"] == record["run"]["seed"]
        assert {"python", "torch", "transformers"} <= set(record["versions"])
        assert [line["step"] for line in record["curve"]] == list(range(1, record["train"]["steps"] + 1))
        assert len(record["scored"]) == 4
        has_labels = any("flipped" in epoch for epoch in record["labels_by_epoch"])
        assert has_labels == (record["run"]["method"] == "ssa-hybrid")
        file = folder / "comparison/records/own/all" / record["run"]["method"]
        raw = json.loads((file / f"seed-{record['seed']}.json").read_text())
        assert raw["train"]["peak_memory_bytes"] > 1e8
        assert raw["curve"][-1]["seconds"] == raw["train"]["seconds"] < raw["wall_seconds"]
        rows = list(csv.DictReader((file / record["predictions"]["validation"]).open()))
        assert list(rows[0]) == ["id", "label", "prediction", "p_bad", "p_good"]
        right = sum(row["label"] == row["prediction"] for row in rows)
        assert right / len(rows) == pytest.approx(record["score"])


@pytest.mark.integration
def test_run_folders_are_dropped_and_the_table_is_of_the_records(whole, attentune, tiny):
    folder, found, printed = whole
    assert not (folder / "comparison" / "runs").exists()
    assert "6 of 6: " in printed
    scores = [r["score"] for n, r in found.items() if n.startswith("records/own/all/bert/") and n.endswith(".json")]
    # The second time nothing is done but the table; with it as JSON.
    status, out, err = attentune(*command(folder, tiny("bert"), *FLAGS, "--format", "json", **LONG))
    assert (status, err) == (0, "")
    cells = {cell["method"]: cell for cell in json.loads(out)["cells"]}
    assert list(cells) == ["bert", "ssa-hybrid"]
    # The verdict is told in both.
    (verdict,) = json.loads(out)["comparisons"]
    assert (verdict["baseline"], verdict["method"], verdict["seeds"], verdict["examples"]) == (
        "bert",
        "ssa-hybrid",
        3,
        20,
    )
    assert f"{verdict['sentence']}.\n" in printed
    status, out, _ = attentune(*command(folder, tiny("bert"), *FLAGS, "--baseline", "ssa-hybrid", **LONG))
    assert (status, "between bert and ssa-hybrid on train.csv" in out or "ssa-hybrid on train.csv by" in out) == (
        0,
        True,
    )
    cell = cells["bert"]
    mean = sum(scores) / 3
    assert cell["mean"] == pytest.approx(mean)
    assert cell["std"] == pytest.approx((sum((score - mean) ** 2 for score in scores) / 2) ** 0.5)
    assert (cell["n"], cell["failed"], cell["metric"], cell["train_size"]) == (3, 0, "accuracy", "all")
    assert sum(times_done(folder / "comparison").values()) == RUNS


@pytest.mark.integration
def test_nothing_that_stops_it_makes_it_lose_or_repeat_a_run(whole, tiny, tmp_path):
    words, folder = command(tmp_path, tiny("bert"), *FLAGS, **LONG), tmp_path / "comparison"
    # A worker is killed: another takes its place and goes on with its run.
    process = start(words)
    run = wait_for(checkpointed(folder), "checkpoint", process)[0]
    victim = worker_at(folder, run)
    kill(victim)
    wait_for(lambda: not is_alive(victim), "end of the killed worker")
    wait_for(lambda: worker_at(folder, run) not in (victim, None), "another worker", process)
    # The command is killed: its workers see the pipe closed, save and end.
    kill(process.pid)
    _, errors = process.communicate()
    assert "its worker was killed by signal 9" in errors
    wait_for(lambda: not workers_of(folder), "end of the orphans")
    # Ctrl-C, which a terminal sends to the whole group.
    process = start(words, start_new_session=True)
    wait_for(checkpointed(folder), "checkpoint", process)
    workers = wait_for(lambda: workers_of(folder), "workers", process)
    os.killpg(process.pid, signal.SIGINT)
    status, out, errors = finish(process)
    assert (status, out) == (130, "")
    assert "runs recorded. Resume with:\n  attentune compare --presets bert,ssa-hybrid" in errors
    assert not any(is_alive(pid) for pid in workers)
    assert len(list(folder.glob("records/*/*/*/*.json"))) < RUNS
    # And now in peace.
    run_here(words)
    assert outcomes(folder) == whole[1]
    assert set(times_done(folder).values()) == {1}
    assert len(times_done(folder)) == RUNS
    assert any("resuming from" in log.read_text() for log in (folder / "logs").glob("*.log"))
    assert not (folder / "runs").exists()


METHODS = """
good: {preset: bert}
"hopeless rate":
  preset: bert
  set: {training.learning_rate: 1.0e+30, training.max_grad_norm: 0}
slow at own data:
  preset: bert-mean
  tasks: {own: {training: {learning_rate: 1.0e-5}}}
"""


@pytest.mark.integration
def test_a_failing_run_is_recorded_and_stops_no_other(attentune, tiny, tmp_path):
    (tmp_path / "methods.yaml").write_text(METHODS)
    flags = ("--settings", str(tmp_path / "methods.yaml"), "--seeds", "3,7", "--jobs", "2")
    words, folder = command(tmp_path, tiny("bert"), *flags, training__precision="fp32"), tmp_path / "comparison"
    status, _, err = attentune(*words)
    assert status == 2
    assert "2 of 6 runs failed" in err
    assert "--retry_failed" in err
    assert err.count("hopeless rate on train.csv, all rows, seed ") == 2
    record = json.loads((folder / "records/own/all/hopeless rate/seed-3.json").read_text())
    assert (record["status"], record["error"]["kind"]) == ("failed", "NonFiniteLossError")
    assert "became nan at step" in record["error"]["message"]
    assert (record["scores"], record["score"], record["predictions"]) == ({}, None, {})
    assert json.loads((folder / "records/own/all/slow at own data/seed-7.json").read_text())["config"]["training"][
        "learning_rate"
    ] == pytest.approx(1e-5)
    # Not again, unless asked for.
    stamp = (folder / "records/own/all/hopeless rate/seed-3.json").stat().st_mtime_ns
    status, out, _ = attentune(*words, "--format", "json")
    counts = {cell["method"]: (cell["n"], cell["failed"]) for cell in json.loads(out)["cells"]}
    assert counts == {"good": (2, 0), "hopeless rate": (0, 2), "slow at own data": (2, 0)}
    assert status == 2
    assert (folder / "records/own/all/hopeless rate/seed-3.json").stat().st_mtime_ns == stamp
    assert attentune(*words, "--retry_failed")[0] == 2
    assert (folder / "records/own/all/hopeless rate/seed-3.json").stat().st_mtime_ns > stamp
    assert set(times_done(folder).values()) == {1}


@pytest.mark.integration
def test_more_presets_sizes_and_seeds_may_be_added(whole, attentune, tiny):
    """Refusals of other settings are in tests/runs/test_grid.py."""
    folder, before, _ = whole
    one = ("--presets", "bert-mean", "--seeds", "9,", "--train-size", "24")
    # What is not computed with does not matter, and more may be added.
    added = command(folder, tiny("bert"), *one, "--keep-runs", **LONG, training__save_total_limit=1)
    out, _ = attentune.done(*added)
    assert (folder / "comparison/runs/own/24/bert-mean/seed-9/model.safetensors").is_file()
    assert out.splitlines()[2].split()[:4] == ["train.csv", "24", "bert-mean", "accuracy"]
    now = outcomes(folder / "comparison")
    assert {name: now[name] for name in before} == before
    assert now["records/own/24/bert-mean/seed-9.json"]["train"]["rows"] == 24
    assert len(now) == len(before) + 2


# `--keep_best`, and the model of a search


QUICK = {"training__num_train_epochs": 1}


@pytest.mark.integration
def test_a_comparison_keeps_the_best_run_of_each_preset_and_names_it(attentune, tiny, tmp_path):
    line = command(tmp_path, tiny("bert"), "--presets", "bert,majority", "--seeds", "2", "--jobs", "2", **QUICK)
    folder = tmp_path / "comparison"
    _, err = attentune.done(*line, "--keep_best")
    best = next(folder.glob("runs/own/all/bert/*"))
    assert (best / "run.json").is_file()
    assert f"kept: {best} (accuracy 0." in err
    out, _ = attentune.done("predict", best, "--text", "a dull film")
    assert out.startswith("id,prediction")
    err = attentune.refused("predict", folder, "--text", "a dull film")
    assert f"compare --keep_best keeps the best run of each preset under {folder / 'runs'}" in err


@pytest.mark.integration
def test_a_search_trains_its_best_settings_and_goes_on_with_an_unfinished_model(attentune, tiny, tmp_path):
    write_reviews(tmp_path / "rows.csv", 60)
    words = (
        "search", tmp_path / "rows.csv", "--model_name_or_path", tiny("bert"), "--search",
        "training.learning_rate=1e-3,3e-3", "--num_train_epochs", 2, "--max_length", 16, "--use_cpu", "--output_dir",
        tmp_path / "s", "--jobs", 2, "--baselines", "none", "--save_steps", 3, "--per_device_train_batch_size", 8,
    )  # fmt: skip
    out, _ = attentune.done(*words, "--settings_only")
    assert "train with it: attentune train --config" in out
    assert not (tmp_path / "s/best").exists()
    out, _ = attentune.done(*words)
    assert f"model with its settings, trained on all training rows: {tmp_path / 's/best'} (validation: accuracy" in out
    result = json.loads((tmp_path / "s/trials.json").read_text())
    record = json.loads((tmp_path / "s/best/run.json").read_text())
    assert (result["model"], result["model_scores"]) == (str(tmp_path / "s/best"), record["scores"])
    trials = [json.loads(file.read_text()) for file in (tmp_path / "s/records").rglob("seed-*.json")]
    assert [trial["train"]["rows"] for trial in trials] == [round(0.8 * record["train"]["rows"])] * 2
    # Killed between its checkpoint and its end: the same command finishes it, with the same weights.
    weights = (tmp_path / "s/best/model.safetensors").read_bytes()
    for name in ("run.json", "model.safetensors"):
        (tmp_path / "s/best" / name).unlink()
    newest = max((tmp_path / "s/best").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    shutil.rmtree(newest)
    _, err = attentune.done(*words)
    assert "resuming from" in err
    assert (tmp_path / "s/best/model.safetensors").read_bytes() == weights
    # A finished one is left as it is; one with the settings of another trial is replaced.
    stamp = (tmp_path / "s/best/run.json").stat().st_mtime_ns
    assert attentune(*words)[0] == 0
    assert (tmp_path / "s/best/run.json").stat().st_mtime_ns == stamp
    other = (tmp_path / "s/best/config.yaml").read_text().replace("learning_rate: 0.00", "learning_rate: 0.01")
    (tmp_path / "s/best/config.yaml").write_text(other)
    assert attentune(*words)[0] == 0
    assert "learning_rate: 0.01" not in (tmp_path / "s/best/config.yaml").read_text()
    out, _ = attentune.done("predict", tmp_path / "s/best", "--text", "a fine film")
    assert out.startswith("id,prediction")


# `attentune compare --folds`: every preset on every fold, paired, with verdicts that allow for the overlap


FOLD_FLAGS = ("--num_train_epochs", "1", "--per_device_train_batch_size", "8", "--max_length", "16", "--use_cpu")


def fold_words(folder: Path, tiny, *more: object) -> tuple[object, ...]:
    if not (folder / "rows.csv").exists():
        write_reviews(folder / "rows.csv", 30)
    own = ("--train_file", folder / "rows.csv", "--model_name_or_path", tiny("bert"), *FOLD_FLAGS)
    return ("compare", "--presets", "bert,bert-mean", *own, "--output_dir", folder / "c", "--quiet", *more)


@pytest.mark.slow
def test_all_folds_of_all_cuts(attentune, tiny, tmp_path):
    out, _ = attentune.done(*fold_words(tmp_path, tiny, "--folds", "2", "--seeds", "2", "--format", "json"))
    found = json.loads(out)
    assert [cell["n"] for cell in found["cells"]] == [4, 4]
    (one,) = found["comparisons"]
    assert (one["over"], one["seeds"], one["p_sign_flip"]) == ("folds", 4, None)
    assert "corrected resampled t test" in " ".join(one["notes"])
    scored: dict[int, list[str]] = {1: [], 2: []}
    for seed in range(1, 5):
        prints = []
        for method in ("bert", "bert-mean"):
            file = tmp_path / "c" / "records" / "own" / "all" / method / f"seed-{seed}.json"
            record = json.loads(file.read_text())
            assert record["config"]["data"]["folds"] == 2
            assert record["config"]["data"]["fold"] == (seed - 1) % 2 + 1
            assert record["config"]["data"]["fold_seed"] == (seed - 1) // 2 + 1
            assert record["train"]["rows"] == 15
            prints.append(record["data_fingerprint"])
        assert prints[0] == prints[1], "paired"
        lines = file.with_name(record["predictions"]["validation"]).read_text().splitlines()[1:]
        scored[(seed - 1) // 2 + 1] += [line.split(",")[0] for line in lines]
    assert sorted(scored[1]) == sorted(scored[2]) == sorted(f"r{number}" for number in range(30))
    assert scored[1] != scored[2]
    # A third cut is added; nothing is done again.
    before = (tmp_path / "c/records/own/all/bert/seed-1.json").stat().st_mtime_ns
    out, _ = attentune.done(*fold_words(tmp_path, tiny, "--folds", "2", "--seeds", "3"))
    assert (tmp_path / "c/records/own/all/bert/seed-1.json").stat().st_mtime_ns == before
    assert "6 folds" in out
    attentune.done("report", tmp_path / "c", "--output_file", tmp_path / "report.md")
    assert "6 folds" in (tmp_path / "report.md").read_text()


def test_all_folds_have_the_same_fingerprints(tmp_path):
    """Else a comparison that is resumed at a later fold would be refused, because its rows seem to have changed."""
    write_reviews(tmp_path / "rows.csv", 30)
    prints = []
    for fold, fold_seed in ((1, 1), (2, 1), (1, 2)):
        folds = {"train_file": str(tmp_path / "rows.csv"), "folds": 2, "fold": fold, "fold_seed": fold_seed}
        config = load_config(overrides={f"data.{name}": value for name, value in folds.items()})
        prints.append(fingerprint_rows("own", rows_of_task(config)))
    assert prints[0] == prints[1] == prints[2]
    assert sorted(prints[0]) == ["train rows of own", "validation rows of own"]
