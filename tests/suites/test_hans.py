"""HANS: every cell against a plain loop, the class of entailment by its name, order, averages over seeds."""

import json
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from attentune.data.dataset import LabelSpace
from attentune.errors import ConfigError, DataError, LabelError
from attentune.inference.predictor import Predictor, predict
from attentune.models.saving import save_model
from attentune.plugins import install_command
from attentune.results import to_json
from attentune.stats.estimate import wilson_interval
from attentune.suites import hans
from attentune.suites.hans import HEURISTICS, HansLine, entailment_class, read_hans, score_hans, short_names
from helpers.glue_samples import hans_lines, write_glue, write_hans, write_run
from helpers.tiny_models import build

NLI = ("contradiction", "entailment", "neutral")


@pytest.fixture(scope="module")
def model(tiny, tmp_path_factory):
    """`model(names, seed=1, is_pair=True)`: the folder of an untrained model of these classes."""

    def make(names: tuple[str, ...] = NLI, *, seed: int = 1, is_pair: bool = True, task_type: str = "classification"):
        folder = tmp_path_factory.mktemp("model")
        space = LabelSpace(task_type, names)
        net, tokenizer = build(tiny("bert"), label_space=space, is_pair=is_pair, seed=seed)
        texts = [line.split("\t")[5:7] for line in hans_lines(4)[1:]]
        batch = tokenizer(
            [first for first, _ in texts], [second for _, second in texts], padding=True, return_tensors="pt"
        )
        with torch.no_grad():  # so that each class is some row's likeliest
            net.classifier.bias -= net(**batch).logits.median(dim=0).values
        save_model(net, tokenizer, folder)
        return folder

    return make


@pytest.fixture
def file(tmp_path):
    return write_hans(tmp_path / "heuristics_evaluation_set.txt", 4)


def expected(file: Path, entails: list[bool]) -> dict[tuple[str, str, str], tuple[int, float]]:
    """Rows and accuracy of every cell ("" where all are meant), by plain loops over the file's own lines."""
    header, *lines = [line.split("\t") for line in file.read_text().splitlines()]
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    right: dict[tuple[str, str, str], list[bool]] = {}
    for row, says in zip(rows, entails, strict=True):
        correct = says == (row["gold_label"] == "entailment")
        for key in (
            ("", "", ""),
            (row["heuristic"], row["gold_label"], ""),
            (row["heuristic"], row["gold_label"], row["subcase"]),
        ):
            right.setdefault(key, []).append(correct)
    return {key: (len(values), sum(values) / len(values)) for key, values in right.items()}


def key_of(line: hans.HansLine) -> tuple[str, str, str]:
    return line.heuristic or "", line.gold_label or "", line.subcase or ""


@pytest.mark.integration
@pytest.mark.parametrize("names", [NLI, ("entailment", "not_entailment"), ("NON-ENTAILMENT", "ENTAILMENT")])
def test_every_cell_is_that_of_a_plain_loop(model, file, names):
    run = model(names)
    report = score_hans([run], file)
    rows = read_hans(file)
    assert rows.pairs is not None
    told = predict(run, rows.texts, rows.pairs)
    entails = [line["prediction"].lower() == "entailment" for line in told]
    assert 0 < sum(entails) < len(entails)  # else the cells say nothing
    wanted = expected(file, entails)
    assert {key_of(line): (line.rows, pytest.approx(line.accuracies[0])) for line in report.lines} == wanted
    assert report.runs[0].entailment.lower() == "entailment"
    assert set(report.runs[0].non_entailment) == {name for name in names if name.lower() != "entailment"}
    assert [key_of(line)[:2] for line in report.cells] == [
        (heuristic, label) for heuristic in HEURISTICS for label in ("entailment", "non-entailment")
    ]
    for line in report.lines:
        hits = round(line.accuracies[0] * line.rows)
        assert line.intervals[0] == wilson_interval(hits, line.rows)
    assert report.lines[0] is report.overall
    assert len(report.subcases) == len({line.subcase for line in report.subcases}) == 12


def test_neutral_and_contradiction_are_both_non_entailment(model, file, monkeypatch):
    likeliest = np.arange(len(read_hans(file))) % 3
    monkeypatch.setattr(hans, "predict_rows", lambda *words, **options: np.eye(3)[likeliest])
    report = score_hans([model()], file)
    assert report.entails_RN.tolist() == [[place % 3 == 1 for place in range(len(likeliest))]]
    # As a sum of two classes neutral and contradiction might win; the likeliest class is what counts.
    monkeypatch.setattr(hans, "predict_rows", lambda *words, **options: np.tile([0.9, 1.0, 0.9], (len(likeliest), 1)))
    assert score_hans([model()], file).entails_RN.all()


@pytest.mark.integration
def test_predictions_keep_the_file_s_order_and_words(model, file):
    lines = hans_lines(4)
    file.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")  # ids that do not ascend
    report = score_hans([model()], file)
    header, *written = report.predictions_text(0).splitlines()
    assert header == "pairID,gold_label"
    assert [line.split(",")[0] for line in written] == [line.split("\t")[7] for line in reversed(lines[1:])]
    assert [line.split(",")[1] for line in written] == [
        "entailment" if says else "non-entailment" for says in report.entails_RN[0]
    ]


@pytest.mark.integration
def test_runs_of_a_method_are_averaged_with_their_deviation(model, file):
    runs = [model(seed=seed) for seed in (1, 2, 3, 4)]
    report = score_hans(runs, file, methods=["a", "b", "a", "a"])
    assert report.methods == ("a", "b")
    assert [run.method for run in report.runs] == ["a", "b", "a", "a"]
    spread = 0
    for line in report.lines:
        a = [line.accuracies[place] for place in (0, 2, 3)]
        assert line.means == pytest.approx((statistics.mean(a), line.accuracies[1]))
        assert line.deviations[0] == pytest.approx(statistics.stdev(a))
        assert line.deviations[1] is None
        spread += statistics.stdev(a) > 0
    assert spread
    alone = score_hans(runs[1:2], file)
    assert [line.accuracies[0] for line in alone.lines] == [line.accuracies[1] for line in report.lines]
    # One loaded run does as well as its folder.
    assert score_hans(Predictor.load(runs[1]), file).to_dict() == alone.to_dict()  # type: ignore[arg-type]


@pytest.mark.integration
def test_a_part_is_seeded_and_has_its_share_of_each_subcase(model, tmp_path):
    file, run = write_hans(tmp_path / "hans.txt", 10), model()
    part = score_hans([run], file, max_samples=24)
    assert (part.rows, part.rows_in_file, part.seed) == (24, 120, 42)
    assert {line.rows for line in part.subcases} == {2}
    assert list(part.ids) == sorted(part.ids, key=lambda key: int(key[2:]))
    assert part.ids == score_hans([run], file, max_samples=24).ids
    assert part.ids != score_hans([run], file, max_samples=24, seed=1).ids
    whole = score_hans([run], file, max_samples=1000)
    assert (whole.rows, whole.seed) == (120, None)
    says = dict(zip(whole.ids, whole.entails_RN[0], strict=True))
    assert [says[key] for key in part.ids] == list(part.entails_RN[0])
    # A cell without rows has no accuracy, and JSON has null for it.
    few = score_hans([run], file, max_samples=1)
    empty = [line for line in few.cells if line.rows == 0]
    assert len(empty) == 5
    assert all(math.isnan(line.accuracies[0]) for line in empty)
    written = json.loads(to_json(few.to_dict()))["lines"]
    assert [line["accuracies"] for line in written if line["rows"] == 0] == [[None]] * 5


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("entailment", "neutral", "contradiction"), 0),
        (("contradiction", "ENTAILMENT"), 1),
        (("not_entailment", "Entails"), 1),
        (("non-entailment", "not entailment", "entailed"), 2),
        (("no", "en-tail-ment", "NotEntailment", "entailment?no"), 1),
        (("0", "1"), "the labels '0', '1'; expected exactly one that is called entailment .* got none of them"),
        (("not_entailment", "neutral"), "got none of them"),
        (("entailment", "ENTAILMENT", "neutral"), "got 'entailment' and 'ENTAILMENT'"),
        ((), "none \\(it predicts scores\\)"),
    ],
)
def test_the_class_of_entailment_is_found_by_its_name_or_the_model_refused(names, expected):
    if isinstance(expected, int):
        assert entailment_class(names) == expected
    else:
        with pytest.raises(LabelError, match=f"runs/x: has .*{expected}.*MNLI, RTE"):
            entailment_class(names, "runs/x")


@pytest.mark.integration
def test_runs_that_do_not_fit_are_refused_before_any_predicts(model, file, monkeypatch):
    def never(*words: object, **options: object) -> None:
        raise AssertionError("predicted before all runs were checked")

    monkeypatch.setattr(hans, "predict_rows", never)
    good = model()
    for bad, message in (
        (model(("bad", "good")), "has the labels 'bad', 'good'"),
        (model(is_pair=False), "was trained on single texts, expected a model of pairs"),
        (model((), task_type="regression"), "it predicts scores"),
    ):
        with pytest.raises(LabelError, match=message):
            score_hans([good, bad], file)
    with pytest.raises(ConfigError, match="is given twice"):
        score_hans([good, good], file)
    with pytest.raises(ConfigError, match=r"labels: got 1 \(a\), expected 2"):
        score_hans([good, model()], file, methods=["a"])
    with pytest.raises(ConfigError, match="max_samples: got 0"):
        score_hans([good], file, max_samples=0)
    monkeypatch.delenv("ATTENTUNE_DATA", raising=False)
    with pytest.raises(ConfigError, match="where are the files of hans"):
        score_hans([good])


def test_names_are_the_ends_of_paths_that_differ():
    assert short_names(["runs/a", "runs/b/"]) == ["a", "b"]
    assert short_names(["runs/a/run", "runs/b/run", "c"]) == ["a/run", "b/run", short_names(["."])[0] + "/c"]
    with pytest.raises(ConfigError, match=r"x/\.\./runs/a: is given twice"):
        short_names(["runs/a", "x/../runs/a"])


# Reading


def test_the_real_file_has_ten_thousand_rows_a_heuristic(data_dir):
    rows = read_hans(data_dir / "hans" / "heuristics_evaluation_set.txt")
    assert len(rows) == 30000
    assert rows.ids[:2] == ("ex0", "ex1")
    assert rows.texts[0] == "The students admired the lawyer ."
    assert rows.pairs[0] == "The lawyer admired the students ."
    heuristics, subcases = rows.kept
    assert (heuristics[0], subcases[0]) == ("lexical_overlap", "ln_subject/object_swap")
    assert [heuristics.count(name) for name in HEURISTICS] == [10000] * 3
    assert (rows.labels == 0).sum() == 15000
    assert {subcases.count(name) for name in set(subcases)} == {1000}
    assert len(set(subcases)) == 30


def test_quotes_are_characters_and_columns_are_found_by_name(tmp_path):
    file = tmp_path / "hans.txt"
    file.write_text(
        "subcase\tpairID\theuristic\tsentence2\tsentence1\tgold_label\n"
        'sn_NP/S\tex7\tsubsequence\tB "x\tA.\tentailment\n'
    )
    found = read_hans(file)
    assert found == replace(found, ids=("ex7",), texts=("A.",), pairs=('B "x',), source=str(file))
    assert (found.labels.tolist(), found.take([0]).kept) == ([0], (("subsequence",), ("sn_NP/S",)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "\tlexical_overlap\t",
            "\toverlap\t",
            r":2: heuristic 'overlap', .*expected a heuristic of lexical_overlap, subsequence",
        ),
        ("entailment\t(", "yes\t(", r":2: unknown labels: 'yes' .*Known: 'entailment', 'non-entailment'"),
        ("\tex1\t", "\tex0\t", r":3: id 'ex0' .*was used before \(.*:2\)"),
        ("\tex1\t", "\tex,1\t", r":3: .*id 'ex,1', expected .*without a comma"),
        ("\tex1\t", "\t", r":3: 10 fields, expected 11"),
        ("\tsubcase\t", "\tcase\t", r": there is no column 'subcase', expected the file of HANS"),
        ("\tle_0\t", "\t \t", r":2: .*subcase ' ', .*expected .*a subcase"),
    ],
)
def test_a_broken_file_is_told_with_its_line(file, old, new, message):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=r"heuristics_evaluation_set\.txt" + message):
        read_hans(file)


# `attentune evaluate --suite hans` from the command line


@pytest.fixture(scope="module")
def place(tiny, tmp_path_factory):
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


@pytest.fixture
def _in_place(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.delenv("ATTENTUNE_DATA", raising=False)


DATA = ("--data", "hans/heuristics_evaluation_set.txt")


@pytest.mark.usefixtures("_in_place")
def test_tables_of_a_trained_run(attentune):
    out, err = attentune.done("evaluate", "--suite", "hans", "trained", *DATA)
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


@pytest.mark.usefixtures("_in_place")
def test_seeds_of_a_method_in_a_table_with_files_and_figure(attentune, tmp_path):
    out_dir = tmp_path / "new" / "out"
    runs = ("seed-1", "trained", "seed-2")
    out, _ = attentune.done(
        "evaluate", "--suite", "hans", *runs, *DATA, "--names", "bert, ours,bert", "--output-dir", out_dir
    )
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


@pytest.mark.usefixtures("_in_place")
def test_json_and_a_part_and_the_known_task_s_folder(attentune, tmp_path):
    flags = ("--data_dir", ".", "--max_samples", "12", "--seed", "3", "--format", "json", "--output_dir", tmp_path)
    out, err = attentune.done("evaluate", "--suite", "hans", "seed-1", *flags)
    report = json.loads(out)
    assert (report["rows"], report["rows_in_file"], report["seed"]) == (12, 36, 3)
    again = score_hans(["seed-1"], data_dir=".", max_samples=12, seed=3)
    assert report == json.loads(to_json(again.to_dict())) | {
        "runs": [{**report["runs"][0], "non_entailment": ["neutral", "contradiction"]}],
        "lines": report["lines"],
    }
    assert out == (tmp_path / "hans.json").read_text()
    assert "a sample of the rows" in err
    assert len((tmp_path / "seed-1" / "predictions.txt").read_text().splitlines()) == 13


@pytest.mark.usefixtures("_in_place")
def test_without_matplotlib_nothing_is_scored(attentune, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    err = attentune.refused("evaluate", "--suite", "hans", "seed-1", *DATA, "--output_dir", tmp_path)
    assert install_command("report") in err
    assert list(tmp_path.iterdir()) == []
