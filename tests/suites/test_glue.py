"""The GLUE site's files: names, words, order and counts, and what is refused."""

import csv
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from attentune.data.builtin import load_spec
from attentune.errors import ConfigError, DataError, StorageError
from attentune.inference.predictor import predict
from attentune.suites import glue as submission
from attentune.suites.glue import (
    CATEGORIES,
    SITE_FILES,
    Submission,
    make_submission,
    read_phenomena,
    score_phenomena,
    site_words,
)
from helpers.glue_samples import write_glue, write_run

ORDER = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX"]
COUNTS = [1063, 1821, 1725, 1379, 390965, 9796, 9847, 5463, 3000, 146, 1104]


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="module")
def run(tiny, glue, tmp_path_factory):
    """`run("cola")`: the folder of an untrained run."""

    def make(task: str, **options: object) -> Path:
        return write_run(tmp_path_factory.mktemp("runs") / task, tiny("bert"), task, glue, **options)  # type: ignore[arg-type]

    return make


def rows_of(content: str) -> list[tuple[int, str]]:
    """What a reader of TSV finds; also that the file's form is right to the byte."""
    header, *lines = content.split("\n")
    assert (header, lines.pop()) == ("index\tprediction", "")
    found = [(int(row["index"]), row["prediction"]) for row in csv.DictReader(io.StringIO(content), delimiter="\t")]
    assert [f"{index}\t{word}" for index, word in found] == lines
    assert [index for index, _ in found] == list(range(len(found)))
    return found


def texts_of(file: Path) -> tuple[list[str], list[str] | None]:
    rows = list(csv.DictReader(file.open(), delimiter="\t", quoting=csv.QUOTE_NONE))
    if "sentence" in rows[0]:
        return [row["sentence"] for row in rows], None
    return [row["sentence1"] for row in rows], [row["sentence2"] for row in rows]


def test_the_table_is_the_site_s():
    assert [file.name for file in SITE_FILES] == ORDER
    assert [file.rows for file in SITE_FILES] == COUNTS
    for file in SITE_FILES:
        spec = load_spec(file.task)
        assert file.split in spec.splits
        fills = site_words(spec, np.arange(len(spec.label_names)), spec.label_names) if spec.label_names else ["2.500"]
        assert file.fill in fills


BITS = {"cola": "acceptable", "sst2": "positive", "mrpc": "equivalent", "qqp": "duplicate", "wnli": "entailment"}
NLI = ["entailment", "neutral", "contradiction"]
NAMES = {"qnli": ["entailment", "not_entailment"], "rte": ["entailment", "not_entailment"], "mnli": NLI, "ax": NLI}


@pytest.mark.parametrize("task", [*BITS, *NAMES])
def test_labels_are_written_as_the_site_wants_them(task):
    spec, words = load_spec(task), NAMES.get(task, ["0", "1"])
    ids = np.arange(len(words))
    assert site_words(spec, ids, spec.label_names) == words
    # By name, whatever the order of the model's classes.
    assert site_words(spec, ids, spec.label_names[::-1]) == words[::-1]
    assert task in NAMES or site_words(spec, np.array([0]), (BITS[task],)) == ["1"]


def test_scores_have_three_decimals_and_stay_on_the_scale():
    scores = np.array([-1.0, 0.0, 1.23456, 4.9999, 5.5], dtype=np.float32)
    assert site_words(load_spec("stsb"), scores, ()) == ["0.000", "0.000", "1.235", "5.000", "5.000"]


def test_each_file_holds_the_run_s_predictions_in_the_file_s_order(run, glue):
    mnli = run("mnli", names=("contradiction", "entailment", "neutral"))
    cola, stsb = run("cola"), run("stsb")
    made = make_submission([mnli, stsb, cola], allow_partial=True)
    assert list(made.contents) == ["CoLA.tsv", "STS-B.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
    assert made.missing == ("SST-2", "MRPC", "QQP", "QNLI", "RTE", "WNLI")
    sources = {
        "CoLA.tsv": (cola, "CoLA/test.tsv", 12),
        "MNLI-m.tsv": (mnli, "MNLI/test_matched.tsv", 12),
        "MNLI-mm.tsv": (mnli, "MNLI/test_mismatched.tsv", 13),
        "AX.tsv": (mnli, "diagnostic/diagnostic.tsv", 12),
    }
    for name, (folder, file, count) in sources.items():
        told = [line["prediction"] for line in predict(folder, *texts_of(glue / file))]
        words = {"acceptable": "1", "unacceptable": "0"} if name == "CoLA.tsv" else {}
        assert [word for _, word in rows_of(made.contents[name])] == [words.get(label, label) for label in told]
        assert len(told) == count
        assert len(set(told)) > 1
        assert made.runs[name] == str(folder)
    scores = [float(word) for _, word in rows_of(made.contents["STS-B.tsv"])]
    told = [line["prediction"] for line in predict(stsb, *texts_of(glue / "STS-B/test.tsv"))]
    assert min(told) < 0
    assert max(told) > 5
    assert scores == pytest.approx([min(max(value, 0), 5) for value in told], abs=5.1e-4)


def test_counts_are_the_published_ones_or_it_is_an_error(run, glue):
    wnli, cola = run("wnli"), run("cola")
    made = make_submission([wnli])
    assert len(rows_of(made.contents["WNLI.tsv"])) == 146
    assert made.warnings == ()
    with pytest.raises(DataError, match=r"CoLA/test\.tsv: has 12 rows, but the published .* 1,063.*--allow_partial"):
        make_submission([wnli, cola])
    partial = make_submission([wnli, cola], allow_partial=True)
    assert len(partial.warnings) == 1
    assert "CoLA 1,063: the site will not take it" in partial.warnings[0]


def test_all_counts_are_checked_before_a_run_predicts(run, monkeypatch):
    def never(*words: object, **options: object) -> None:
        raise AssertionError("predicted before all rows were counted")

    monkeypatch.setattr(submission, "predict_rows", never)
    with pytest.raises(DataError, match="published test file"):
        make_submission([run("wnli"), run("rte")])


def test_missing_tasks_are_filled_with_the_largest_class(run):
    made = make_submission([run("wnli")], fill_missing=True)
    assert list(made.contents) == [f"{name}.tsv" for name in ORDER]
    assert made.missing == ()
    filled = {name: content for name, content in made.contents.items() if made.runs[name] is None}
    assert set(made.contents) - set(filled) == {"WNLI.tsv"}
    for file in SITE_FILES:
        assert made.contents[file.file_name].count("\n") == file.rows + 1
        if file.file_name in filled:
            assert {word for _, word in rows_of(filled[file.file_name])} == {file.fill}


def test_ax_is_left_out_and_said_where_its_file_is_not_there(tiny, tmp_path, run, glue):
    alone = write_run(tmp_path / "mnli", tiny("bert"), "MNLI-m", glue / "MNLI")
    made = make_submission([alone], allow_partial=True)
    assert "AX" in made.missing
    assert any(
        f"AX: left out, since there is no diagnostic.tsv or AX.tsv in {glue / 'MNLI'}" in w for w in made.warnings
    )
    # The given folder goes before the run's own.
    assert "AX.tsv" in make_submission([alone], data_dir=str(glue), allow_partial=True).contents


def test_runs_that_do_not_fit_are_refused(tiny, tmp_path, run, glue):
    cola = run("cola")
    with pytest.raises(ConfigError, match=r"was trained on cola, and so was .*; expected one run a task"):
        make_submission([cola, run("cola", seed=2)], allow_partial=True)
    other = write_run(tmp_path / "sick", tiny("bert"), "sick", glue)
    with pytest.raises(ConfigError, match=r"was trained on sick .*config\.yaml.* expected a task of GLUE: cola"):
        make_submission([other])
    (other / "config.yaml").write_text("data: {train_file: my.csv}\n")
    with pytest.raises(ConfigError, match=r"was trained on my\.csv"):
        make_submission([other])
    (other / "config.yaml").write_text("data: {task: rte, data_dir: x}\n")
    with pytest.raises(ConfigError, match="predicts entailment, neutral, contradiction, but the site wants entailment"):
        make_submission([other])
    missing = write_run(tmp_path / "qnli", tiny("bert"), "qnli", glue)
    with pytest.raises(DataError, match="no test files of qnli"):
        make_submission([missing])


def test_the_zip_is_whole_or_not_there(tmp_path, monkeypatch):
    made = Submission({"RTE.tsv": "index\tprediction\n0\tentailment\n"}, {"RTE.tsv": None})
    file = tmp_path / "out.zip"
    made.write(file)
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name).decode() for name in archive.namelist()} == dict(made.contents)
    before = file.read_bytes()
    assert made.zipped() == before
    monkeypatch.setattr("attentune.io.files.os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(StorageError, match="the disk is full"):
        Submission({}, {}).write(file)
    assert [path.name for path in tmp_path.iterdir()] == ["out.zip"]
    assert file.read_bytes() == before
    with pytest.raises(ConfigError, match=r"got 'out\.tsv', expected a name that ends in \.zip"):
        made.write("out.tsv")
    with pytest.raises(ConfigError, match="no such folder"):
        made.write(tmp_path / "nix" / "out.zip")


# AX, GLUE's diagnostic set: its phenomena, and scores of a run by phenomenon.


HEADER = "\t".join([*CATEGORIES, "Domain", "Premise", "Hypothesis", "Label"])
LINES = [
    "Lexical entailment;Factivity\t\tNegation\t\tNews\tA cat sat.\tA cat stood.\tcontradiction",
    "\tCore args\tNegation; Disjunction\t\tNews\tA cat sat.\tA cat sat.\tentailment",
    "\t\t\t\t\tA cat sat.\tA dog sat.\tneutral",
]


def write(folder, lines=LINES, header=HEADER):
    file = folder / "diagnostic-full.tsv"
    file.write_text("\n".join([header, *lines]) + "\n")
    return file


def test_a_row_has_several_phenomena_or_none(tmp_path):
    found = read_phenomena(write(tmp_path), [2, 3, 4])
    assert found == {
        "Lexical Semantics": ({"Lexical entailment", "Factivity"}, set(), set()),
        "Predicate-Argument Structure": (set(), {"Core args"}, set()),
        "Logic": ({"Negation"}, {"Negation", "Disjunction"}, set()),
        "Knowledge": (set(), set(), set()),
    }
    assert read_phenomena(tmp_path / "diagnostic-full.tsv", [4, 2])["Logic"] == (set(), {"Negation"})


def test_a_file_without_phenomena_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no column 'Logic', expected the file of"):
        read_phenomena(write(tmp_path, header=HEADER.replace("Logic", "Reason")), [2])


def test_scores_are_those_of_the_rows_with_the_phenomenon():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 400)
    predictions = np.where(generator.random(400) < 0.5, labels, generator.integers(0, 3, 400))
    has = {name: generator.random(400) < 0.4 for name in ("Negation", "Disjunction")}
    phenomena = {"Logic": tuple(frozenset(name for name in has if has[name][row]) for row in range(400))}
    found = {(one.category, one.phenomenon): one for one in score_phenomena(labels, predictions, phenomena)}
    chosen = {
        (None, None): np.ones(400, bool),
        ("Logic", None): has["Negation"] | has["Disjunction"],
        **{("Logic", name): inside for name, inside in has.items()},
    }
    assert list(found) == [(None, None), ("Logic", None), ("Logic", "Disjunction"), ("Logic", "Negation")]
    for key, inside in chosen.items():
        one = found[key]
        assert one.rows == inside.sum()
        assert one.score == pytest.approx(matthews_corrcoef(labels[inside], predictions[inside]))
        assert one.low < one.score < one.high
    assert (
        found[None, None].high - found[None, None].low
        < found["Logic", "Negation"].high - found["Logic", "Negation"].low
    )


# `attentune submit`, and AX by `attentune evaluate`, from the command line


@pytest.fixture(scope="module")
def place(tiny, tmp_path_factory):
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


@pytest.fixture
def _in_place(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.delenv("ATTENTUNE_DATA", raising=False)


def predicted(attentune, *words: object) -> list[str]:
    out, _ = attentune.done("predict", *words)
    return [row["prediction"] for row in csv.DictReader(out.splitlines())]


@pytest.mark.usefixtures("_in_place")
def test_a_zip_of_trained_runs(attentune, tmp_path):
    file = tmp_path / "submission.zip"
    out, err = attentune.done("submit", "mnli", "cola", "wnli", "--output_file", file, "--allow-partial")
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
    assert "the zip lacks SST-2, MRPC, STS-B, QQP, QNLI, RTE;" in err
    assert "--fill_missing" in err
    assert err.count("the site will not take it") == 4
    assert "WNLI: 146 of 146 rows" in err


@pytest.mark.usefixtures("_in_place")
def test_ax_is_scored_with_a_model_of_mnli(attentune):
    ax = ("--task", "ax", "--data_dir", "glue")
    out, _ = attentune.done("evaluate", "mnli", *ax, "--format", "json")
    with open("glue/diagnostic/diagnostic-full.tsv") as file:  # noqa: PTH123
        gold = [row["Label"] for row in csv.DictReader(file, delimiter="\t")]
    told = predicted(attentune, "mnli", *ax, "--split", "validation")
    assert len(gold) == 30
    assert len(set(told)) > 1
    value = json.loads(out)["validation"]["matthews_correlation"]
    assert value == pytest.approx(matthews_corrcoef(gold, told))
    assert value != 0
    out, _ = attentune.done("evaluate", "mnli", *ax)
    assert "Matthews correlation by phenomenon; a row may have several" in out
    lines = [line.split()[:4] for line in out.splitlines() if line.startswith("Logic")]
    assert lines == [["Logic", name, "30", f"{value:.4f}"] for name in ("all", "Negation")]
    out, _ = attentune.done("evaluate", "mnli", *ax, "--format", "json", "--details", "--max_eval_samples", "12")
    assert [line["rows"] for line in json.loads(out)["details"]["phenomena"]] == [12] * 5
    assert "phenomenon" not in attentune.done("evaluate", "mnli")[0]
    # The test file has no labels: it can be predicted, not scored.
    err = attentune.refused("evaluate", "mnli", *ax, "--split", "test")
    assert "has no labels to score against" in err
    # Two labels do not do for it.
    err = attentune.refused("evaluate", "wnli", *ax)
    assert "the model does not know the labels 'neutral', 'contradiction'" in err
