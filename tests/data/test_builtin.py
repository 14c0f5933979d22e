"""The known tasks: real files where they are at hand, hand-written rows in the published layouts for the rest."""

import re
from pathlib import Path

import pytest

from attentune.config.schema import DataConfig
from attentune.data.builtin import load_spec, spec_names
from attentune.data.dataset import TASK_TYPES, LabelSpace, TaskData
from attentune.data.load import load_data
from attentune.errors import ConfigError, DataError, LabelError


def load(task: str, folder: Path | str, splits: tuple[str, ...] | None = None, **settings: object) -> TaskData:
    return load_data(DataConfig(task=task, data_dir=str(folder), **settings), seed=1, splits=splits)  # type: ignore[arg-type]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


# Rows of train, validation and test; None where the file is not at hand.
ROWS = {
    "cola": ("glue_data", 8551, 1043, 1063),
    "rte": ("glue_data", 2490, 277, 3000),
    "wnli": ("glue_data", 635, 71, 146),
    "sst2": ("glue_data", 67349, 872, None),
    "mrpc": ("glue_data", 3668, 408, 1725),
    "qnli": ("glue_data", 4463, 1000, 5463),
    "qqp": ("glue_data", 16212, 4000, None),
    "stsb": ("glue_data", 6040, 863, None),
    "sst5": ("cs224n", 8544, 1101, 2210),
    "sts": ("cs224n", 6040, 863, 1725),
    "cfimdb": ("cs224n", 1707, 245, None),
    # Each file has one row without a label, which the course's loader passes over too.
    "quora": ("cs224n", 16213, 3999, None),
    "sick": ("sick", 4500, 500, None),
    "sick-r": ("sick", 4500, 500, None),
    "hans": ("hans", None, 30000, None),
}


@pytest.mark.integration
@pytest.mark.parametrize("task", ROWS)
def test_real_files_have_their_published_rows(data_dir, task):
    folder, *counts = ROWS[task]
    data = load(task, data_dir / folder)
    expected = {name: count for name, count in zip(("train", "validation", "test"), counts, strict=True) if count}
    assert {name: len(rows) for name, rows in data.splits.items()} == expected
    for name, rows in data.splits.items():
        assert (rows.labels is None) == (name == "test")
        assert len(set(rows.ids)) == len(rows)


def test_real_rows_stay_as_they_are(data_dir):
    """Texts against the file's own lines, with the quotes that QUOTE_NONE keeps."""
    rows = load("mrpc", data_dir, ("validation",)).splits["validation"]
    lines = (data_dir / "glue_data/MRPC/dev.tsv").read_text(encoding="utf-8").split("\n")
    for text, pair, line in zip(rows.texts, rows.pairs, rows.lines, strict=True):
        assert lines[line - 1].split("\t")[3:] == [text, pair]
    assert rows.texts[0].startswith('"A lot of these')


@pytest.mark.integration
def test_ids_are_the_files_own_or_row_numbers(data_dir):
    cola = load("cola", data_dir)
    assert cola.splits["validation"].ids[:2] == ("0", "1")
    assert cola.splits["test"].ids[-1] == "1062"
    assert load("hans", data_dir).splits["validation"].ids[0] == "ex0"
    assert load("qqp", data_dir, ("validation",)).splits["validation"].ids[0] == "19308"
    assert load("sick", data_dir, ("train",)).splits["train"].ids[0] == "5912"
    told = "quora-train.csv: 1 row is left out, as the label means that there is none: '' (1)"
    assert any(told in note for note in load("quora", data_dir).notes)


def test_the_tasks_own_folder_and_the_environment_do_as_well(data_dir, monkeypatch):
    expected = load("rte", data_dir / "glue_data").fingerprint()
    assert load("RTE", data_dir / "glue_data" / "RTE").fingerprint() == expected
    monkeypatch.setenv("ATTENTUNE_DATA", str(data_dir))
    assert load_data(DataConfig(task="rte"), seed=5).fingerprint() == expected


MNLI_HEAD = "index promptID pairID genre s1bp s2bp s1p s2p sentence1 sentence2".replace(" ", "\t")


def mnli_line(index: int, first: str, second: str, labels: str) -> str:
    fields = [str(index), f"{index}c", f"{index}n", "fiction", "( a )", "( b )", "(ROOT", "(ROOT", first, second]
    return "\t".join([*fields, *labels.split()]) + "\n"


def write_mnli(folder: Path) -> None:
    write(folder / "train.tsv", f"{MNLI_HEAD}\tlabel1\tgold_label\n" + mnli_line(0, "A.", 'B "x', "neutral neutral"))
    head = MNLI_HEAD + "".join(f"\tlabel{number}" for number in range(1, 6)) + "\tgold_label\n"
    votes = "entailment " * 5
    write(folder / "dev_matched.tsv", head + mnli_line(7, "C", "D", votes + "contradiction"))
    rows = mnli_line(8, "E", "F", votes + "-") + mnli_line(9, "G", "H", votes + "entailment")
    write(folder / "dev_mismatched.tsv", head + rows)
    write(folder / "test_matched.tsv", f"{MNLI_HEAD}\n{MNLI_HEAD.replace('index', '3')}\n")


def test_mnli_in_the_layout_of_glue(tmp_path):
    write_mnli(tmp_path / "MNLI")
    data = load("MNLI", tmp_path)
    assert list(data.splits) == ["train", "validation_matched", "validation_mismatched", "test_matched"]
    train = data.splits["train"]
    assert (train.texts, train.pairs, train.ids) == (("A.",), ('B "x',), ("0",))
    labels = {name: rows.labels.tolist() for name, rows in data.splits.items() if rows.labels is not None}
    assert labels == {"train": [1], "validation_matched": [2], "validation_mismatched": [0]}
    assert data.splits["validation_mismatched"].ids == ("9",)
    assert any("1 row is left out, as the label means that there is none: '-' (1)" in note for note in data.notes)
    assert list(load("mnli", tmp_path / "MNLI", ("validation",)).splits) == [
        "validation_matched",
        "validation_mismatched",
    ]


def test_ax_with_and_without_labels(tmp_path):
    folder = tmp_path / "diagnostic"
    write(folder / "diagnostic.tsv", "index\tsentence1\tsentence2\n0\tA\tB\n1\tC\tD\n")
    data = load("ax", tmp_path)
    assert list(data.splits) == ["test"]
    assert data.splits["test"].labels is None
    head = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel\n"
    write(folder / "diagnostic-full.tsv", head + "\t\tNegation\t\tNews\tA\tB\tcontradiction\n")
    rows = load("ax", folder).splits["validation"]
    assert (rows.texts, rows.pairs) == (("A",), ("B",))
    assert rows.labels.tolist() == [2]


def test_broken_rows_of_qqp_are_left_out_and_said(tmp_path):
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    write(tmp_path / "QQP/train.tsv", head + "5\t1\t2\tA?\tB?\t1\n6\t3\t4\tC?\n7\t5\t6\tE?\tF?\t0\n")
    write(tmp_path / "QQP/dev.tsv", head + "8\t1\t2\tA?\tB?\t1\n")
    data = load("qqp", tmp_path)
    assert data.splits["train"].ids == ("5", "7")
    assert any("train.tsv: left out for missing or extra fields: line 3." in note for note in data.notes)


def test_published_sick_with_windows_line_ends(tmp_path):
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
    write(tmp_path / "SICK_train.txt", head + "1\tA\tB\t4.5\tNEUTRAL\r\n2\tC\tD\t5\tENTAILMENT\r\n")
    write(tmp_path / "SICK_trial.txt", head + "4\tA\tB\t1\tCONTRADICTION\r\n")
    write(tmp_path / "SICK_test_annotated.txt", head + "6\tA\tB\t2\tNEUTRAL\r\n")
    data = load("sick", tmp_path)
    labels = {name: rows.labels.tolist() for name, rows in data.splits.items() if rows.labels is not None}
    assert labels == {"train": [1, 0], "validation": [2], "test": [1]}
    scores = load("sick-r", tmp_path).splits["train"].labels
    assert scores.tolist() == [4.5, 5.0]


RTE = "index\tsentence1\tsentence2\tlabel\n"


def write_rte(folder: Path, train: str = "0\tA\tB\tentailment\n") -> None:
    write(folder / "RTE/train.tsv", RTE + train)
    write(folder / "RTE/dev.tsv", RTE + "0\tC\tD\tnot_entailment\n")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0\tA\tB\tmaybe\n", r"train.tsv:2: unknown labels: 'maybe' .* Known: 'entailment', 'not_entailment'"),
        ("0\tA\tB\t\n", r"train.tsv:2: column 'label' has no label here"),
        ("0\tA\tB\n", r"train.tsv:2: 3 fields, expected 4"),
    ],
)
def test_a_broken_row_of_a_known_task(tmp_path, row, message):
    write_rte(tmp_path, row)
    with pytest.raises(DataError, match=message):
        load("rte", tmp_path)


def test_another_tasks_folder_is_told(tmp_path):
    write_rte(tmp_path)
    with pytest.raises(DataError, match=r"train.tsv: there is no column '#1 String', expected the file of MRPC"):
        load("mrpc", tmp_path / "RTE")


def test_missing_files_and_folders_say_where_to_get_them(tmp_path, monkeypatch):
    monkeypatch.delenv("ATTENTUNE_DATA", raising=False)
    write_rte(tmp_path)
    (tmp_path / "RTE/dev.tsv").unlink()
    with pytest.raises(DataError) as caught:
        load("rte", tmp_path)
    assert "no validation files of rte (dev.tsv) found" in str(caught.value)
    assert str(tmp_path / "RTE") in str(caught.value)
    assert "To get them: RTE.zip from https://gluebenchmark.com" in str(caught.value)
    assert list(load("rte", tmp_path, ("train",)).splits) == ["train"]
    with pytest.raises(DataError, match="no test files of rte"):
        load("rte", tmp_path, ("train", "test"))
    with pytest.raises(DataError, match="does not exist, expected the folder of rte's files"):
        load("rte", tmp_path / "nowhere")
    with pytest.raises(DataError, match="no validation, test files of ax"):
        load("ax", tmp_path)
    with pytest.raises(
        ConfigError, match=r"where are the files of rte\? Give their folder with --data_dir, or set ATT"
    ):
        load_data(DataConfig(task="rte"), seed=1)
    with pytest.raises(ConfigError, match=r"hans has no split 'train'. Its splits: validation"):
        load("hans", tmp_path, ("train",))


def test_labels_are_mapped_to_a_models_by_name(tmp_path):
    write_mnli(tmp_path / "MNLI")
    write_rte(tmp_path)
    config = DataConfig(task="mnli", data_dir=str(tmp_path))
    space = LabelSpace("classification", ("contradiction", "other", "neutral", "entailment"))
    data = load_data(config, seed=1, label_space=space)
    assert data.label_space == space
    labels = [rows.labels.tolist() for rows in data.splits.values() if rows.labels is not None]
    assert labels == [[2], [0], [3]]
    with pytest.raises(LabelError, match="does not know the label 'not_entailment'"):
        load_data(DataConfig(task="rte", data_dir=str(tmp_path)), seed=1, label_space=space)
    with pytest.raises(LabelError, match="trained on scores"):
        load_data(config, seed=1, label_space=LabelSpace("regression"))


def test_another_task_type_where_the_labels_allow_it(tmp_path):
    head = "\tid\tsentence\tsentiment\n"
    write(tmp_path / "ids-sst-train.csv", head + "0\ta\t Good .\t4\n1\tb\tBad\t0\n")
    write(tmp_path / "ids-sst-dev.csv", head + "0\tc\tSo so\t2\n")
    data = load("sst5", tmp_path)
    assert data.label_space.task_type == "ordinal"
    assert data.splits["train"].texts[0] == " Good ."
    classes = load("sst5", tmp_path, task_type="classification")
    assert classes.label_space.names == data.label_space.names
    scores = load("sst5", tmp_path, task_type="regression")
    assert scores.metrics == ("pearson", "spearmanr", "mean_absolute_error")
    assert scores.splits["train"].labels.tolist() == [4.0, 0.0]
    write_rte(tmp_path)
    with pytest.raises(ConfigError, match="labels of rte are no numbers"):
        load("rte", tmp_path, task_type="regression")
    with pytest.raises(ConfigError, match="labels of sts are scores"):
        load("sts", tmp_path, task_type="classification")


# The specifications: names that users type, and what the project relies on.

TASKS = (
    *("ax", "cfimdb", "cola", "hans", "mnli", "mrpc", "qnli", "qqp", "quora", "rte"),
    *("sick", "sick-r", "sst2", "sst5", "sts", "stsb", "wnli"),
)


def test_names_as_users_type_them():
    assert spec_names() == TASKS
    typed = {
        **{"CoLA": "cola", "STS-B": "stsb", "sts_b": "stsb", "stsb": "stsb", "sts": "sts", "sst-2": "sst2"},
        **{"SST 5": "sst5", "MNLI-mm": "mnli", "mnli_matched": "mnli", "AX": "ax", "HANS": "hans"},
        **{"SICK-R": "sick-r", "SICK": "sick", "sick_e": "sick"},
    }
    assert {name: load_spec(name).name for name in typed} == typed


LABELS = {
    "cola": ("unacceptable", "acceptable"),
    "sst2": ("negative", "positive"),
    "mrpc": ("not_equivalent", "equivalent"),
    "qqp": ("not_duplicate", "duplicate"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "ax": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "wnli": ("not_entailment", "entailment"),
    "hans": ("entailment", "non-entailment"),
    "sst5": ("very negative", "negative", "neutral", "positive", "very positive"),
}


def test_labels_have_the_order_of_their_publisher_and_numbers_are_ids_in_it():
    assert {name: load_spec(name).label_names for name in LABELS} == LABELS
    for spec in map(load_spec, ("cola", "sst2", "mrpc", "qqp", "wnli", "sst5")):
        assert [spec.label_values[str(number)] for number in range(len(spec.label_names))] == list(spec.label_names)


@pytest.mark.parametrize("name", TASKS)
def test_each_file_is_complete(name):
    spec = load_spec(name)
    assert spec.task_type in TASK_TYPES
    assert spec.quoting in ("none", "csv")
    assert (spec.label_names == ()) == (spec.task_type == "regression")
    assert all(part and "\n" not in part for part in (spec.title, spec.description, spec.source))
    assert {split.split("_")[0] for split in spec.splits} <= {"train", "validation", "test"}
    assert all(split.optional for key, split in spec.splits.items() if key.startswith("test"))
    assert "." in spec.folders
    assert all(isinstance(value, str) for value in spec.label_values)
    assert set(spec.label_values.values()) == set(spec.label_names)


def test_no_two_tasks_share_a_name():
    names = [re.sub(r"[^a-z0-9]", "", name.lower()) for task in TASKS for name in {task, *load_spec(task).aliases}]
    owners = [task for task in TASKS for _ in {task, *load_spec(task).aliases}]
    assert len(set(names)) == len(set(zip(names, owners, strict=True)))
