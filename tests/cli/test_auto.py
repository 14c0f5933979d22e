"""`attentune auto`: from real sentences to a delivered model, within its limit, through interruptions and kills."""

import csv
import json
import random
import re
import shlex
import shutil
import signal
import time
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file, save_file

from attentune.automl import delivery
from attentune.automl.budget import Schedule
from attentune.config import load_config
from attentune.inference.fusion import Fusion
from attentune.inference.predictor import Predictor, predict
from helpers.comparisons import finish, kill, start, wait_for
from helpers.samples import run_here

SMALL = ("--max_length", "24", "--use_cpu", "--num_train_epochs", "1", "--learning_rate", "1e-3")
PORTFOLIO = ("--portfolio", "majority,tfidf-linear,bert-mean")
LONG = ("--time_limit", "1h")


def write_sentences(path: Path, first: int, last: int, *, shuffled: bool = False) -> Path:
    """Write product sentences with their sentiment; optionally with labels that have nothing to do with them."""
    text = (resources.files("attentune.demo") / "sentences" / "amazon_cells_labelled.txt").read_text(encoding="utf-8")
    rows = [line.rsplit("\t", 1) for line in text.strip().split("\n")][first:last]
    labels = [{"0": "bad", "1": "good"}[label.strip()] for _, label in rows]
    if shuffled:
        random.Random(5).shuffle(labels)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(zip((text.strip() for text, _ in rows), labels, strict=True))
    return path


def words(folder: Path, encoder: Path, *flags: str) -> list[str]:
    """Return a command line on 60 sentences that writes to `folder/best`."""
    if not (folder / "train.csv").exists():
        write_sentences(folder / "train.csv", 0, 60)
        write_sentences(folder / "test.csv", 60, 90)
    files = ("--train_file", folder / "train.csv", "--test_file", folder / "test.csv", "--output_dir", folder / "best")
    return [str(word) for word in ("auto", *files, "--model_name_or_path", encoder, *SMALL, *flags)]


def tasks(folder: Path) -> list[tuple[int, str]]:
    """Return the process id and name of each run that a worker has begun, in their order to the second."""
    lines = [line for log in (folder / "best/auto/logs").glob("*.log") for line in log.read_text().splitlines()]
    found = [
        re.fullmatch(r"\S+ process (\d+): own/all/(.+)/seed-(\d+)", line)
        for line in sorted(lines, key=lambda line: line[:8])
    ]
    return [(int(one[1]), f"{one[2]}, fold {int(one[3]) - 42}") for one in found if one is not None]


def finished_folds(folder: Path) -> dict[str, bytes]:
    """Return the records of finished runs: a fold each, and one for all folds of a baseline."""
    files = (folder / "best/auto/records").glob("*/*/*/seed-*.json")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def delivered(tiny, tmp_path_factory) -> tuple[Path, str, str]:
    """A finished command: its folder's parent, and what it printed."""
    folder = tmp_path_factory.mktemp("auto")
    flags = (*PORTFOLIO, *LONG, "--folds", "3", "--jobs", "2")
    return folder, *run_here(words(folder, tiny("bert"), *flags))


@pytest.mark.integration
def test_the_leaderboard_shows_every_member_and_the_estimate(delivered):
    folder, out, err = delivered
    result = json.loads((folder / "best/auto/leaderboard.json").read_text())
    rows = {row["name"]: row for row in result["leaderboard"]}
    assert {"majority", "tfidf-linear", "bert-mean"} <= set(rows)
    assert all(row["status"] == "done" and row["seconds"] > 0 for row in rows.values())
    for row in rows.values():
        assert row["low"] <= row["score"] <= row["high"]
        assert re.search(rf"^{row['name']} +{row['score']:.4f}", out, re.MULTILINE)
    assert len(re.findall(r" delivered$", out, re.MULTILINE)) == 1
    assert all(f" {step}" in err for step in ("training bert-mean", "fusing", "estimating the score", "scoring"))
    # The scores that explain the choice are those of the table.
    assert set(re.findall(r"accuracy (0\.\d{4})|against (0\.\d{4})\)", result["reason"])) <= {
        pair for row in rows.values() for pair in ((f"{row['score']:.4f}", ""), ("", f"{row['score']:.4f}"))
    }
    assert f"Estimate for new rows: accuracy {result['estimate']['value']:.4f} (95 % interval" in out
    assert "bert-mean: accuracy" in err
    commands = [shlex.split(line) for line in err.rpartition("next:\n")[2].splitlines()]
    assert [command[:4] for command in commands] == [
        ["attentune", name, str(folder / "best"), "--text"] for name in ("predict", "explain")
    ]


@pytest.mark.integration
def test_the_delivery_is_an_ordinary_run_folder(delivered, attentune):
    folder, _, _ = delivered
    best = folder / "best"
    result = json.loads((best / "auto/leaderboard.json").read_text())
    out, _ = attentune.done("evaluate", best, "--split", "test", "--format", "json")
    assert json.loads(out)["test"] == pytest.approx(result["scores"]["test"])
    assert json.loads((best / "run.json").read_text())["scores"]["test"] == result["scores"]["test"]
    assert predict(best, ["Great phone, works well."])[0]["prediction"] in ("bad", "good")
    config = load_config(best / "config.yaml", as_record=True)
    assert config.data.train_file == str(folder / "train.csv")
    assert Predictor.load(best).label_space.names == ("bad", "good")
    assert len(list(csv.DictReader((best / "predictions_test.csv").open()))) == 30
    # No row of the training file counts as held out.
    for command in (("evaluate", best), ("calibrate", best, "--reject", "0.1")):
        assert "--validation_file" in attentune.refused(*command)


@pytest.mark.integration
def test_the_report_tells_the_leaderboard_and_is_on_test_rows(delivered, attentune, tmp_path):
    best = delivered[0] / "best"
    result = json.loads((best / "auto/leaderboard.json").read_text())
    for name in ("report.md", "report.html"):
        attentune.done("report", best, "--output_file", tmp_path / name)
        text = (tmp_path / name).read_text()
        assert result["reason"] in text
        assert f"accuracy {100 * result['scores']['test']['accuracy']:.1f} (95 % interval" in text
        assert "Scores are on test rows" in text
        assert all(f"{row['score']:.4f}" in text for row in result["leaderboard"])


@pytest.mark.integration
def test_the_doctor_judges_labels_by_the_out_of_fold_predictions(delivered, attentune, tiny, tmp_path):
    folder = delivered[0]
    encoder = ("--model_name_or_path", tiny("bert"), "--max_length", "24")
    out, _ = attentune.done("doctor", "--labels", "--run", folder / "best", *encoder, "--format", "json")
    labels = json.loads(out)["labels"]
    assert (labels["rows"], labels["source"]) == (60, f"the out-of-fold predictions of {folder / 'best'}")
    write_sentences(tmp_path / "other.csv", 5, 65)
    words = ("doctor", tmp_path / "other.csv", "--labels", "--run", folder / "best", *encoder)
    err = attentune.refused(*words)
    assert "was made from other rows or labels than these 60" in err


@pytest.mark.integration
def test_each_fold_is_trained_once_even_if_resumed(delivered, attentune, tiny):
    folder, _, _ = delivered
    begun, before = tasks(folder), finished_folds(folder)
    assert len(before) == 6
    # The fourth run, for which time is left at the end, is that on all rows.
    assert sorted(name for _, name in begun if "bert" in name) == [f"bert-mean, fold {fold}" for fold in (1, 2, 3, 4)]
    rows = [json.loads(text)["train"]["rows"] for name, text in sorted(before.items()) if "bert-mean" in name]
    assert rows == [40, 40, 40, 60]
    flags = (*PORTFOLIO, *LONG, "--folds", "3", "--jobs", "2", "--resume")
    out, _ = attentune.done(*words(folder, tiny("bert"), *flags))
    assert tasks(folder) == begun
    assert finished_folds(folder) == before
    assert "bert-mean" in out


@pytest.mark.integration
def test_ctrl_c_delivers_the_best_so_far_and_resume_trains_the_rest(attentune, tiny, tmp_path):
    flags = ("--portfolio", "majority,tfidf-linear,bert-mean", "--folds", "3", "--jobs", "1")
    line = words(tmp_path, tiny("bert"), *flags, *LONG, "--set", "training.num_train_epochs=20")
    line = [word for place, word in enumerate(line) if "--num_train_epochs" not in line[max(0, place - 1) : place + 1]]
    process = start(line)
    wait_for(lambda: any(name == "bert-mean, fold 2" for _, name in tasks(tmp_path)), "second fold", process)
    before = finished_folds(tmp_path)
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    assert status == 130, err
    assert "stopped; the best so far is in" in err
    assert err.strip().endswith("--resume")
    assert re.search(r"bert-mean .* stopped", out)
    assert predict(tmp_path / "best", ["Great phone."])[0]["prediction"] in ("bad", "good")
    assert len([name for name in before if "bert-mean" in name]) == 1
    attentune.done(*line, "--resume")
    after = finished_folds(tmp_path)
    assert before.items() <= after.items()
    assert len(after) == 6
    names = [name for _, name in tasks(tmp_path)]
    assert names.count("bert-mean, fold 1") == names.count("bert-mean, fold 3") == 1
    assert names.count("bert-mean, fold 2") <= 2


@pytest.mark.integration
@pytest.mark.parametrize("similar", [True, False])
def test_the_cosine_bi_encoder_comes_first_where_similarity_decides(attentune, tiny, tmp_path, similar):
    """Labels say, with some mistakes, whether the texts are equal; or whether the second one has a certain word."""
    generator = random.Random(1)
    letters = "abcdefghijklmnop"
    with (tmp_path / "train.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["first", "second", "label"])
        for number in range(80):
            first = " ".join(generator.choices(letters, k=9))
            second = first if number % 2 and similar else " ".join(generator.choices(letters, k=9))
            label = number % 2 ^ (number % 4 == 0) if similar else number % 2
            second += " aa" if label and not similar else ""
            writer.writerow([first, second, "yes" if label else "no"])
    columns = ("--text_column", "first", "--text_pair_column", "second", "--label_column", "label")
    members = ("--portfolio", "majority,tfidf-linear,cosine,bert,bi-encoder-cosine", "--folds", "2", "--jobs", "1")
    given = ("--train_file", tmp_path / "train.csv", *columns, *members, *LONG, *SMALL)
    attentune.done("auto", *given, "--model_name_or_path", tiny("bert"), "--output_dir", tmp_path / "best", "--quiet")
    fine_tuned = [name for _, name in tasks(tmp_path) if name.startswith(("be", "bi"))]
    assert fine_tuned[0] == ("bi-encoder-cosine, fold 1" if similar else "bert, fold 1")
    assert len(fine_tuned) == 6  # two folds each, and the models on all rows


@pytest.mark.slow
def test_a_command_that_is_killed_ten_times_delivers_what_an_undisturbed_one_does(tiny, tmp_path):
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    flags = (*PORTFOLIO, *LONG, "--folds", "7", "--jobs", "2")
    for folder in (disturbed, undisturbed):
        folder.mkdir()
    status, _, err = finish(start(words(undisturbed, tiny("bert"), *flags)))
    assert status == 0, err
    line = words(disturbed, tiny("bert"), *flags)

    def resumed() -> list[str]:
        return [*line, "--resume"] if (disturbed / "best/auto").exists() else line

    for number in range(10):
        kept, begun = finished_folds(disturbed), len(tasks(disturbed))
        process = start(resumed())
        if number % 2:
            wait_for(lambda kept=kept: len(finished_folds(disturbed)) > len(kept), "finished fold", process)
        elif number == 0:
            wait_for((disturbed / "best/auto").exists, "folder", process)
        else:
            wait_for(lambda begun=begun: len(tasks(disturbed)) > begun, "task", process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert kept.items() <= finished_folds(disturbed).items()
    status, _, err = finish(start(resumed()))
    assert status == 0, err
    texts = ["Great phone, works well.", "It broke after a week."]
    assert predict(disturbed / "best", texts) == predict(undisturbed / "best", texts)
    boards = (json.loads((one / "best/auto/leaderboard.json").read_text()) for one in (disturbed, undisturbed))
    ours, theirs = ([(row["name"], row["score"]) for row in board["leaderboard"]] for board in boards)
    assert ours == theirs


@pytest.mark.integration
def test_an_encoder_is_adapted_once_for_all_folds(attentune, tiny, tmp_path):
    write_sentences(tmp_path / "more.csv", 200, 300)
    flags = ("--portfolio", "majority,bert-mean-adapted", "--folds", "3", "--jobs", "2")
    process = start(words(tmp_path, tiny("bert"), *flags, *LONG, "--unlabeled_file", str(tmp_path / "more.csv")))
    adaptation = "bert-mean-adapted, fold 0"

    def worker() -> int | None:
        return next((pid for pid, name in tasks(tmp_path) if name == adaptation), None)

    kill(wait_for(worker, "worker that adapts the encoder", process))
    status, out, err = finish(process)
    assert status == 0, err
    assert "bert-mean-adapted, adapting its encoder: its worker was killed" in err
    names = [name for _, name in tasks(tmp_path) if name.startswith("bert-mean-adapted")]
    assert names[:2] == [adaptation, adaptation]
    assert sorted(names[2:]) == [f"bert-mean-adapted, fold {fold}" for fold in (1, 2, 3, 4)]
    encoder = tmp_path / "best/auto/encoders/bert-mean-adapted" / f"{tiny('bert').name}-adapted"
    assert json.loads((encoder / "training/run.json").read_text())["train"]["rows"] == 160
    assert re.search(r"^bert-mean-adapted +0\.\d+", out, re.MULTILINE)
    assert predict(tmp_path / "best", ["Great phone."])[0]["prediction"] in ("bad", "good")
    # What is finished is not adapted again.
    attentune.done(*words(tmp_path, tiny("bert"), *flags, *LONG, "--resume"))
    assert len([name for _, name in tasks(tmp_path) if name == adaptation]) == 2


def write_intents(path: Path, classes: int, rows: int) -> Path:
    """Write rows of many classes, each with some words of its own."""
    draw = random.Random(classes)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for row in range(rows):
            words = [f"w{row % classes}x{draw.randrange(4)}", *(f"f{draw.randrange(300)}" for _ in range(7))]
            writer.writerow([" ".join(draw.sample(words, len(words))), f"c{row % classes}"])
    return path


def intents(folder: Path, encoder: Path, *flags: str, classes: int, rows: int) -> list[str]:
    """Return a command line on rows of many classes that writes to `folder/best`."""
    given = ("--train_file", write_intents(folder / "train.csv", classes, rows), "--model_name_or_path", encoder)
    folders = ("--output_dir", folder / "best", "--max_length", "24", "--use_cpu", "--learning_rate", "1e-3")
    return [str(word) for word in ("auto", *given, *folders, *flags)]


@pytest.mark.integration
def test_the_encoder_with_the_better_frozen_vectors_is_fine_tuned_first(attentune, tiny, tmp_path):
    """A second worker waits for these vectors too."""
    for name in ("blind", "seeing"):
        shutil.copytree(tiny("bert"), tmp_path / name)
    weights = load_file(tmp_path / "blind/model.safetensors")
    blind = {name: 0 * one if "word_embeddings" in name else one for name, one in weights.items()}
    save_file(blind, tmp_path / "blind/model.safetensors", metadata={"format": "pt"})
    encoders = ("--encoders", f"{tmp_path / 'blind'},{tmp_path / 'seeing'}")
    flags = ("--portfolio", "frozen-linear,bert-mean", "--folds", "2", "--jobs", "2", "--num_train_epochs", "1")
    status, _, err = attentune(*intents(tmp_path, tiny("bert"), *encoders, *LONG, *flags, classes=3, rows=120))
    assert status == 0, err
    assert re.search(r"fine-tuned in this order, by the loss of their frozen vectors: seeing \d\.\d+, blind \d", err)
    fine_tuned = [name.partition(",")[0] for _, name in tasks(tmp_path) if name.startswith("bert-mean")]
    assert fine_tuned[:4] == ["bert-mean@seeing"] * 2 + ["bert-mean"] * 2


@pytest.mark.integration
def test_of_encoders_with_equal_frozen_vectors_each_is_fine_tuned_first_once(attentune, tiny, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(tiny("bert"), tmp_path / name)
    encoders = ("--encoders", f"{tmp_path / 'one'},{tmp_path / 'two'}")
    portfolio = ("--portfolio", "frozen-linear,bert-mean,bert-cls-mean")
    flags = (*portfolio, "--folds", "2", "--jobs", "1", "--num_train_epochs", "1", *LONG)
    status, _, err = attentune(*intents(tmp_path, tiny("bert"), *encoders, *flags, classes=3, rows=60))
    assert status == 0, err
    assert "They do not tell the first 2 apart: a member of each comes first." in " ".join(err.split())
    names = [name.partition(",")[0].partition("@")[0] for _, name in tasks(tmp_path) if name.startswith("bert")]
    assert names[:8] == ["bert-mean"] * 4 + ["bert-cls-mean"] * 4


@pytest.mark.integration
@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_ctrl_c_delivers_at_once_with_an_estimate(tiny, tmp_path, jobs):
    flags = ("--portfolio", "majority,tfidf-linear,bert-mean", "--folds", "3", "--jobs", str(jobs), *LONG)
    line = intents(tmp_path, tiny("bert"), *flags, "--num_train_epochs", "200", classes=20, rows=400)
    process = start(line)
    wait_for(lambda: any(name == "bert-mean, fold 1" for _, name in tasks(tmp_path)), "first fold", process)
    wait_for((tmp_path / "best/auto/records/own/all/tfidf-linear/seed-42.json").exists, "finished member", process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) > jobs  # the workers, and the server from which they are forked
    began = time.time()
    process.send_signal(signal.SIGINT)
    status, _, err = finish(process)
    ended = time.time()
    # Two seconds where the processor is free, and one more to end.
    assert ended - began < 15
    assert ended - (tmp_path / "best/auto/leaderboard.json").stat().st_mtime < 5
    assert not psutil.wait_procs(children, timeout=5)[1]
    assert status == 130, err
    assert err.strip().endswith("--resume")
    result = json.loads((tmp_path / "best/auto/leaderboard.json").read_text())
    assert result["stopped"]
    assert 0.2 < result["estimate"]["low"] < result["estimate"]["value"]
    assert "Interrupted after" in result["notes"][-1]
    assert "with 2 of 3 members finished" in result["notes"][-1]
    assert predict(tmp_path / "best", ["w3x1 f2 f3"])[0]["prediction"] == "c3"


@pytest.mark.integration
@pytest.mark.parametrize("step", ["fit_fusion", "estimate_score", "Distillation"])
def test_ctrl_c_at_the_end_delivers_too(attentune, tiny, tmp_path, monkeypatch, step):
    """While members are fused, the score is estimated, or one encoder learns from the best."""
    whole, calls = getattr(delivery, step), []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(step)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return whole(*arguments, **options)

    monkeypatch.setattr(delivery, step, interrupted)
    portfolio = ("bert-mean", "--deliver", "single") if step == "Distillation" else ("majority,tfidf-linear,bert-mean",)
    flags = ("--folds", "2", "--jobs", "1", *LONG, "--portfolio", *portfolio)
    status, out, err = attentune(*words(tmp_path, tiny("bert"), *flags))
    assert calls
    assert status == 130, err
    assert "stopped; the best so far is in" in err
    assert "Estimate for new rows" in out
    assert json.loads((tmp_path / "best/auto/leaderboard.json").read_text())["scores"] == {}
    assert predict(tmp_path / "best", ["Great phone."])[0]["prediction"] in ("bad", "good")


@pytest.mark.integration
def test_a_baseline_without_a_fit_on_all_rows_takes_part(attentune, tiny, tmp_path):
    """Out of time before that: the models of its folds are averaged."""
    flags = ("--portfolio", "majority,tfidf-linear", "--folds", "3", "--jobs", "1")
    line = intents(tmp_path, tiny("bert"), *flags, classes=3, rows=90)
    attentune.done(*line, *LONG)
    shutil.rmtree(tmp_path / "best/auto/runs/own/all/tfidf-linear/seed-42/all")
    out, _ = attentune.done(*line, *LONG, "--resume")
    assert re.search(r"^tfidf-linear .* (delivered|in the fusion, weight 0\.\d)", out, re.MULTILINE)
    assert predict(tmp_path / "best", ["w1x1 f2 f3"])[0]["prediction"] == "c1"
    members = json.loads((tmp_path / "best/ensemble.json").read_text())["members"]
    assert len(next(member for member in members if member["name"] == "tfidf-linear")["folders"]) == 3


@pytest.mark.integration
def test_where_no_member_was_ready_more_time_is_asked_for(attentune, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("attentune.automl.auto._DELIVERY_S", 1e3)  # so that no time is left for training
    flags = ("--time_limit", "10s", "--portfolio", "frozen-linear,tfidf-linear,majority", "--jobs", "1")
    err = attentune.refused(*intents(tmp_path, tiny("bert"), *flags, classes=2, rows=300))
    assert "no member was trained on all folds" in err
    assert "--time_limit" in err


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "rows"), [(2, 400), (20, 400), (150, 1500), (500, 2500)])
def test_the_limit_is_kept_whatever_the_number_of_classes(tiny, tmp_path, classes, rows):
    limit_s = 60
    flags = ("--time_limit", f"{limit_s}s", "--jobs", "1", "--format", "json", "--set", "training.num_train_epochs=800")
    resource = pytest.importorskip("resource")  # not on Windows
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    began = time.monotonic()
    status, out, err = finish(start(intents(tmp_path, tiny("bert"), *flags, classes=classes, rows=rows)))
    seconds = time.monotonic() - began
    assert status == 0, err
    result = json.loads(out)
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    assert largest < max(before, 2.8), "2 GiB over the 0.8 of a process that trains this encoder"
    # A tenth, and what the interpreter and the imports take on a busy machine.
    assert seconds < 1.1 * limit_s + 10
    assert result["estimate"]["value"] > 1.5 / classes
    assert "fusing" in err
    assert "estimating" in err
    assert predict(tmp_path / "best", ["w1x1 f2 f3"])


@pytest.fixture
def fuses_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the mean of all members delivered, whatever their scores are."""
    fit = delivery.fit_fusion

    def fit_mean(problem: Any, *options: Any, **more: Any) -> Any:
        mean = Fusion.weighted("weights", dict.fromkeys(problem.logits, 1.0), problem.space.task_type)
        return replace(fit(problem, *options, **more), fusion=mean)

    monkeypatch.setattr(delivery, "fit_fusion", fit_mean)


@pytest.mark.integration
def test_a_member_that_was_given_up_goes_on_with_more_time(attentune, tiny, tmp_path, fuses_all, monkeypatch):
    """The folds that it had finished are not trained again, and their models are delivered."""

    def give_up(schedule: Schedule, *_: Any) -> None:
        for state in schedule.states:
            state.note = "given up" if state.member.name == "bert-mean" and state.done else ""

    flags = ("--portfolio", "majority,bert-mean", "--folds", "3", "--jobs", "1", *LONG)
    with monkeypatch.context() as short_of_time:
        short_of_time.setattr(Schedule, "give_up_late_members", give_up)
        out, _ = attentune.done(*words(tmp_path, tiny("bert"), *flags))
    assert re.search(r"^bert-mean .* given up$", out, re.MULTILINE), out
    attentune.done(*words(tmp_path, tiny("bert"), *flags, "--resume"))
    names = [name for _, name in tasks(tmp_path) if name.startswith("bert-mean")]
    assert names[:3] == [f"bert-mean, fold {fold}" for fold in (1, 2, 3)]
    assert names.count("bert-mean, fold 1") == 1
    members = json.loads((tmp_path / "best/ensemble.json").read_text())["members"]
    assert {member["name"] for member in members} == {"majority", "bert-mean"}


@pytest.mark.integration
def test_the_speed_of_several_models_is_told(attentune, tiny, tmp_path, fuses_all):
    """The encoders of `bert-mean`, and the frozen one of two baselines."""
    flags = ("--portfolio", "bert-mean,frozen-linear,frozen-middle,majority", "--folds", "2", "--jobs", "1")
    status, _, err = attentune(*words(tmp_path, tiny("bert"), *flags, *LONG))
    assert status == 0, err
    told = re.search(
        r"(\d+) models read each text: a worker predicts about ([\d,.]+) texts a second\.", " ".join(err.split())
    )
    assert told is not None, err
    members = json.loads((tmp_path / "best/ensemble.json").read_text())["members"]
    folders = {member["name"]: member["folders"] for member in members}
    assert len(folders) == 4
    assert int(told[1]) == len(folders["bert-mean"]) + 1
    assert 10 < float(told[2].replace(",", "")) < 1e6
    assert told[0] in (tmp_path / "best/README.md").read_text()


@pytest.mark.integration
def test_fused_baselines_are_a_single_model_of_one_encoder(attentune, tiny, tmp_path, fuses_all):
    flags = ("--portfolio", "tfidf-linear,frozen-linear", "--folds", "2", "--jobs", "2", "--deliver", "single")
    status, out, err = attentune(*words(tmp_path, tiny("bert"), *flags, *LONG))
    assert status == 0, err
    members = [member["name"] for member in json.loads((tmp_path / "best/ensemble.json").read_text())["members"]]
    assert members == ["tfidf-linear", "frozen-linear"]
    assert "All its members are baselines, which share one encoder." in " ".join(out.split())
    best = tmp_path / "best"
    assert (best / "ensemble.json").is_file()
    assert not (best / "auto/single").exists()
    assert predict(best, ["Great phone."])[0]["prediction"] in ("bad", "good")


@pytest.mark.integration
@pytest.mark.parametrize("validation", [False, True])
def test_a_baseline_that_beats_the_distilled_encoder_is_delivered(attentune, tiny, tmp_path, fuses_all, validation):
    flags = ("--portfolio", "tfidf-linear,bert-mean", "--folds", "2", "--jobs", "1", "--deliver", "single", "--reject")
    line = intents(tmp_path, tiny("bert"), *flags, *LONG, classes=3, rows=90)
    line += ["--validation_file", str(tmp_path / "train.csv")] * validation
    out, _ = attentune.done(*line)
    told = re.search(r"tfidf-linear is delivered: its accuracy is (0\.\d+|1\.0000) on \d+ .* ensemble (0\.\d+)", out)
    assert told, out
    assert float(told[1]) > float(told[2])
    best = Predictor.load(tmp_path / "best")
    assert (best.kind, best.rejection.score) == ("tfidf-linear baseline", "energy")
    assert re.search(r"^tfidf-linear .* in the fusion, weight 1$", out, re.MULTILINE), out  # as the fixture fuses one
    assert predict(best, ["w1x1 f2 f3"])[0]["prediction"] == "c1"


@pytest.mark.integration
@pytest.mark.parametrize(("classes", "first"), [(19, "tfidf-linear"), (20, "frozen-linear")])
def test_the_strongest_baseline_of_many_classes_comes_first(attentune, tiny, tmp_path, classes, first):
    flags = ("--portfolio", "majority,tfidf-linear,frozen-linear", "--folds", "2", "--jobs", "1", *LONG)
    attentune.done(*intents(tmp_path, tiny("bert"), *flags, classes=classes, rows=100))
    assert next(name for _, name in tasks(tmp_path) if "majority" not in name).startswith(first)


@pytest.mark.integration
def test_without_time_to_distil_the_ensemble_is_delivered(attentune, tiny, tmp_path, monkeypatch):
    distillation = delivery.Distillation
    monkeypatch.setattr(delivery, "Distillation", lambda **given: distillation(**{**given, "left_s": lambda: 0.0}))
    flags = ("--portfolio", "bert-mean", "--folds", "2", "--jobs", "2", "--deliver", "single")
    out, _ = attentune.done(*words(tmp_path, tiny("bert"), *flags, *LONG))
    assert "No time was left to distil it into one encoder: give more with --time_limit and --resume." in out
    assert (tmp_path / "best/ensemble.json").is_file()
    assert predict(tmp_path / "best", ["Great phone."])[0]["prediction"] in ("bad", "good")


@pytest.mark.integration
def test_other_rows_or_settings_are_not_resumed(delivered, attentune, tiny, tmp_path):
    folder, _, _ = delivered
    line = words(folder, tiny("bert"), *PORTFOLIO, *LONG, "--folds", "3", "--resume")
    err = attentune.refused(*line, "--weight_decay", "0.5")
    assert "cannot be resumed: the settings changed since it was begun" in err
    other = write_sentences(tmp_path / "other.csv", 100, 160)
    line[line.index("--train_file") + 1] = str(other)
    err = attentune.refused(*line)
    assert "cannot be resumed: the rows changed" in err
