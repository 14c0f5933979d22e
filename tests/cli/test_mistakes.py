"""What users get wrong: status 2 and one message that names place and cure; nothing is written."""

from __future__ import annotations

import gzip
import shlex
import shutil
from pathlib import Path

import pytest

from attentune.training.callbacks import ProgressCallback
from helpers.samples import write_reviews

GOOD = "id,text,label\n1,the film was fine,good\n2,a dull story,bad\n"
JSON = '{"text": "the film was fine", "label": "good"}\n'
FILES: dict[str, bytes | str] = {
    "repeated-id.csv": "id,text,label\na,x,good\na,y,bad\n",
    "other-label.csv": "text,label\nso fine,good\nso so,average\n",
    "no-label.csv": "text,label\nso fine,good\nso so,\nbad,bad\n",
    "long-row.csv": GOOD + "3,no, not good,bad\n",
    "short-row.csv": GOOD + "3\n",
    "open-quote.csv": GOOD + '3,"so fine,good\n4,so dull,bad\n',
    "stray-quote.csv": GOOD + '3,"so" fine,good\n',
    "repeated-name.csv": "text,text,label\na,b,good\n",
    "blank-line.csv": "text,label\nso fine,good\n\nso dull,bad\n",
    "semicolons.csv": "text;label\nso fine;good\nso dull, though;bad\nso so\n",
    "mixed.csv": GOOD.encode() + "3,größer,good\n".encode() + "4,café,good\n".encode("latin-1"),
    "nul.csv": GOOD + "3,so\0fine,good\n",
    "empty.csv": "",
    "empty.jsonl": "",
    "blank.csv": "\n\n\n",
    "header.csv": "text,label\n",
    "broken.jsonl": JSON + '{"text": "so dull", "label"}\n',
    "broken.json": '[{"text": "so dull", "label": "bad"},\n {"text": "so fine" "label": "good"}]',
    "list.jsonl": JSON + '["so dull", "bad"]\n',
    "repeated-key.jsonl": JSON + '{"text": "a", "text": "b", "label": "bad"}\n',
    "notes.txt": "so fine",
    "plain.csv.gz": GOOD,
    "cut.csv.gz": gzip.compress(GOOD.encode() * 50)[:-20],
    "plain.parquet": GOOD,
    "one-class.csv": "text,label\nso fine,good\nso lovely,good\n",
    "one-row.csv": "text,label\nso fine,4.5\n",
    "scores.csv": "text,label\nso fine,4.5\nso dull,1\nso so,nan\n",
    "two-scores.csv": "text,label\nso fine,4.5\nso dull,1\nso so,3\n",
    "other-columns.csv": "a,b\nso fine,so dull\n",
    "broken.yaml": "model: {head: [1,\n",
    "list.yaml": "- 1\n",
    "unknown.yaml": "model: {head: {knd: cls}}\n",
}

BASE = "train --train_file train.csv --validation_file dev.csv --model_name_or_path encoder --max_length 32 --use_cpu "
# name: flags put after BASE and "--output_dir out", then what the message has to say. A place comes first.
DATA: dict[str, tuple[str, ...]] = {
    "no text column": ("--text_column body", "train.csv: there is no column 'body'", "'text'", "--text_column"),
    "no label column": ("--label_column labels", "train.csv: there is no column 'labels'", "Did you mean 'label'"),
    "no second text": ("--text_pair_column b", "train.csv: there is no column 'b'", "--text_pair_column"),
    "no id column": ("--id_column key", "train.csv: there is no column 'key'", "--id_column"),
    "repeated id": ("--train_file repeated-id.csv --id_column id", "repeated-id.csv:3: id 'a'", "repeated-id.csv:2"),
    "label only in dev": ("--validation_file other-label.csv", "other-label.csv:3: ", "'average'", "'bad', 'good'"),
    "label only in test": ("--test_file other-label.csv", "other-label.csv:3: ", "'average'", "Known"),
    "row without label": ("--train_file no-label.csv", "no-label.csv:3: column 'label' has no label", "take the row"),
    "too many fields": ("--train_file long-row.csv", "long-row.csv:4: 4 fields, expected 3", "double quotes"),
    "too few fields": ("--train_file short-row.csv", "short-row.csv:4: 1 field, expected 3", "Add what is missing"),
    "quote not closed": ("--train_file open-quote.csv", "open-quote.csv:4: ", "never closed", "double each quote"),
    "stray quote": ("--train_file stray-quote.csv", "stray-quote.csv:4: ", "do not pair up"),
    "repeated name": ("--train_file repeated-name.csv", "repeated-name.csv:1: ", "'text' more than once"),
    "blank line": ("--train_file blank-line.csv", "blank-line.csv:3: a blank line", "Delete it"),
    "semicolons": ("--train_file semicolons.csv", "semicolons.csv:3: 2 fields, expected 1", "semicolons", "not all"),
    "delimiter": ("--train_file semicolons.csv --delimiter ;;", "--delimiter: got ';;', expected one character"),
    "two encodings": ("--train_file mixed.csv", "mixed.csv:5: byte 6", "0xe9", "iconv -f WINDOWS-1252", "--encoding"),
    "no such encoding": ("--train_file mixed.csv --encoding ansi", "--encoding: got 'ansi'", "cp1252"),
    "nul": ("--train_file nul.csv", "nul.csv:4: byte 5 is NUL",),
    "empty file": ("--train_file empty.csv", "empty.csv: the file is empty, expected rows"),
    "empty json": ("--train_file empty.jsonl", "empty.jsonl: the file is empty, expected rows"),
    "blank file": ("--train_file blank.csv", "blank.csv: ", "blank line", "expected"),
    "header only": ("--train_file header.csv", "header.csv: holds a header but no rows", "Add rows"),
    "validation without rows": ("--validation_file header.csv", "header.csv: holds a header but no rows"),
    "broken json line": ("--train_file broken.jsonl", "broken.jsonl:2: not valid JSON at column", "Correct this line"),
    "broken json": ("--train_file broken.json", "broken.json:2: not valid JSON at column 21"),
    "not an object": ("--train_file list.jsonl", "list.jsonl:2: a list, expected an object"),
    "repeated key": ("--train_file repeated-key.jsonl", "repeated-key.jsonl:2: ", "'text' more than once"),
    "missing file": ("--train_file trian.csv", "trian.csv: there is no such file", "Did you mean 'train.csv'"),
    "missing folder": ("--train_file no/train.csv", "no/train.csv: there is no such file", "folder no does not exist"),
    "folder": ("--train_file encoder", "encoder: this is a folder, expected a file"),
    "unknown ending": ("--train_file notes.txt", "notes.txt: the name ends in '.txt', expected one of .csv"),
    "not gzipped": ("--train_file plain.csv.gz", "plain.csv.gz: cannot be unpacked", "whole gzip file"),
    "cut gzip": ("--train_file cut.csv.gz", "cut.csv.gz: cannot be unpacked", "Fetch or pack it again"),
    "not parquet": ("--train_file plain.parquet", "plain.parquet: not a whole Parquet file", "Write it again"),
    "one class": ("--train_file one-class.csv", "one-class.csv: ", "only the label 'good'", "at least two classes"),
    "one row": ("--train_file one-row.csv --validation_file null --task_type regression", "one-row.csv: holds one row",
                "Give a validation_file"),
    "text for scores": ("--task_type regression", "train.csv:2: label ", "expected a finite number"),
    "nan for a score": ("--train_file scores.csv --task_type regression", "scores.csv:4: label 'nan'", "finite number"),
    "order unknown": ("--task_type ordinal", "data.label_names: ", "lowest first", "Found: bad, good"),
    "names misfit": ("--label_names good,nice", "train.csv:", "unknown labels: 'bad'", "Known: 'good', 'nice'"),
}  # fmt: skip
SETTINGS: dict[str, tuple[str, ...]] = {
    "no source": ("--train_file null --validation_file null", "data: got none, expected one source", "--task NAME"),
    "only validation": ("--train_file null", "dev.csv: has no labelled rows to train on", "train"),
    "two sources": ("--task cola", "data: got task and train_file together, expected one source"),
    "folder without task": ("--data_dir .", "data.data_dir: ", "goes with --task"),
    "unknown preset": ("--preset bert-meen", "preset: got 'bert-meen', expected one of", "Did you mean 'bert-mean'"),
    "unknown flag": ("--lerning-rate 1", "--lerning_rate: unknown flag", "Did you mean '--learning_rate'"),
    "unknown setting": ("--set training.sede=1", "training.sede: there is no such setting", "Did you mean 'seed'"),
    "set without section": ("--set seed=1", "--set seed=1: expected SECTION.KEY=VALUE"),
    "stray word": ("stray", "stray: is given, and so is --train_file train.csv. Give one."),
    "flag without value": ("--seed", "argument --seed: expected one argument", "--help"),
    "unknown choice": ("--eval_strategy epochs", "training.eval_strategy: got 'epochs', expected one of epoch, steps"),
    "rate nan": ("--learning_rate nan", "training.learning_rate: got 'nan', expected a number"),
    "rate zero": ("--learning_rate 0", "training.learning_rate: got '0', expected a number above 0"),
    "seed below zero": ("--seed=-1", "training.seed: got '-1', expected a number of at least 0"),
    "seed in words": ("--seed one", "training.seed: got 'one', expected a whole number"),
    "half a row": ("--per_device_train_batch_size 0.5", "training.per_device_train_batch_size: got '0.5'", "whole"),
    "batch of none": ("--per_device_train_batch_size 0", "training.per_device_train_batch_size: ", "at least 1"),
    "neither true nor false": ("--use_cpu maybe", "training.use_cpu: got 'maybe', expected true or false"),
    "names that contradict": ("--max_length 8 --max_seq_length 16", "--max_seq_length: ", "data.max_length", "one"),
    "precisions that contradict": ("--bf16 --fp16", "--fp16: sets training.precision = fp16", "bf16"),
    "fp16 on a cpu": ("--fp16", "training.precision: fp16 needs a GPU, but --use_cpu is given", "auto, bf16 or fp32"),
    "unknown encoder": ("--model_name_or_path no-such-encoder", "no-such-encoder: no encoder could be loaded", "hub"),
    "missing encoder": ("--model_name_or_path ./nix", "./nix: there is no such folder", "config.json"),
    "no weights": ("--model_name_or_path no-weights", "no-weights: no encoder could be loaded", "model.safetensors"),
    "torn weights": ("--model_name_or_path torn", "torn: no encoder could be loaded", "Expected"),
    "no tokenizer": ("--model_name_or_path wordless", "wordless: its tokenizer has no vocabulary", "tokenizer.json"),
    "too long": ("--max_length 512", "encoder: accepts at most 160 tokens", "--max_length 160 or less"),
    "three weights": ("--class_weights 1,2,3", "objective.class_weights: ", "2 numbers", "bad, good"),
    "weight of another class": ('--class_weights "{good: 1, fine: 2}"', "objective.class_weights: ", "'bad', 'good'"),
    "weights for scores": ("--train_file two-scores.csv --validation_file null --task_type regression"
                           " --class_weights balanced", "objective: class_weights", "regression"),
    "metric of another task": ("--train_file two-scores.csv --validation_file null --task_type regression"
                               " --metric_for_best_model accuracy", "training.metric_for_best_model: ", "pearson"),
    "unknown metric": ("--metric_for_best_model acc", "training.metric_for_best_model: got 'acc'", "accuracy"),
    "loss of another task": ("--loss mse", "objective.loss: got 'mse'", "classification"),
    "smoothed scores": ("--loss mse --label_smoothing 0.1", "objective.label_smoothing: ", "set it to 0"),
    "early stopping unscored": ("--eval_strategy no --early_stopping_patience 2", "training.early_stopping_patience: "
                                "needs scores", "eval_strategy"),
    "best of none": ("--eval_strategy no --load_best_model_at_end", "training.load_best_model_at_end: needs scores"),
    "steps of no number": ("--eval_strategy steps", "training.eval_steps: ", "needs a number"),
    "resume and overwrite": ("--resume --overwrite_output_dir", "training.resume and training.overwrite", "choose one"),
    "no configuration": ("--config no.yaml", "no.yaml: no such file", "config.yaml"),
    "broken configuration": ("--config broken.yaml", "broken.yaml: is not valid YAML"),
    "list as configuration": ("--config list.yaml", "list.yaml: holds list, expected sections"),
    "unknown in file": ("--config unknown.yaml", "model.head.knd: there is no such setting", "Did you mean 'kind'"),
    "output is a file": ("--output_dir notes.txt", "notes.txt: ", "is a file|a part of the path is a file", "another"),
    "output below a file": ("--output_dir notes.txt/out", "", "notes.txt: is a file", "another"),
    "output is no run": ("--output_dir no-weights", "no-weights: is not empty", "--resume", "--overwrite_output_dir"),
    "overwrite no run": ("--output_dir no-weights --overwrite_output_dir", "no-weights: ", "will not be emptied"),
    "resume no run": ("--output_dir no-weights --resume", "no-weights: has no config.yaml", "no run to resume"),
}  # fmt: skip
# Whole command lines.
OTHERS: dict[str, tuple[str, ...]] = {
    "no output": ("train --dataset_name no/such", "training.output_dir: is missing", "--output_dir"),
    "unknown command": ("trian", "'trian': unknown command", "Did you mean 'train'"),
    "unknown task": ("train --task colaa --output_dir out", "data.task: ", "Did you mean 'cola'"),
    "no task folder": ("train --task cola --data_dir nix --output_dir out", "nix: ", "does not exist", "CoLA.zip"),
    "empty task folder": ("train --task cola --data_dir encoder --output_dir out", "encoder: ", "dev.tsv", "CoLA"),
    "no data set": ("train --dataset_name no/such --output_dir out", "no/such: ", "cannot be loaded", "connection"),
    "resume nothing": ("train --resume --output_dir out", "out: has no config.yaml", "Train without --resume"),
    "resume without folder": ("train --resume", "training.output_dir: is missing"),
    "resume other settings": (BASE + "--output_dir run --resume --seed 9", "run: was begun with other settings",
                              "was 42, now 9", "train --resume --output_dir run"),
    "run in the folder": (BASE + "--output_dir run", "run: is not empty", "--resume", "--overwrite_output_dir"),
    "evaluate nothing": ("evaluate", "the following arguments are required: RUN", "--help"),
    "evaluate a missing run": ("evaluate nix", "nix: holds no config.json", "attentune train"),
    "evaluate no run": ("evaluate encoder", "encoder: holds a plain bert encoder", "expected the folder of a"),
    "evaluate a file": ("evaluate train.csv", "train.csv: "),
    "evaluate other labels": ("evaluate run --validation_file other-label.csv", "other-label.csv:3: ", "'average'"),
    "evaluate without labels": ("evaluate run --validation_file no-label.csv", "no-label.csv:3: ", "no label"),
    "evaluate no split": ("evaluate run --split tets", "split: got 'tets'", "Did you mean 'test'"),
    "evaluate no test": ("evaluate run --split test", "data: no file is given for test", "--test_file"),
    "evaluate pairs": ("evaluate run --validation_file train.csv --text_pair_column id", "train.csv: got pairs",
                       "single texts"),
    "evaluate bad precision": ("evaluate run --precision fp8", "training.precision: got 'fp8', expected one of auto"),
    "evaluate a train flag": ("evaluate run --bf16", "--bf16: unknown flag", "--help"),
    "predict no texts": ("predict run", "predict: got no texts, expected one of --text, --input_file"),
    "predict two": ("predict run --text a --input_file dev.csv", "predict: got text and input_file, expected one"),
    "predict a pair": ("predict run --text a --text_pair b", "run: ", "single texts", "leave out --text_pair"),
    "predict no column": ("predict run --input_file other-columns.csv", "other-columns.csv: ", "--text_column"),
    "predict an empty file": ("predict run --input_file empty.csv", "empty.csv: the file is empty"),
    "predict bad precision": ("predict run --text a --precision half", "training.precision: got 'half'"),
    "predict into no folder": ("predict run --text a --output_file nix/o.csv", "nix/o.csv: could not be written",
                               "folder does not exist"),
    "predict into a folder": ("predict run --text a --output_file encoder", "--output_file: encoder is a folder",
                              "another name"),
    "doctor without data": ("doctor", "data: got none, expected one source"),
    "doctor broken file": ("doctor --train_file long-row.csv", "long-row.csv:4: 4 fields, expected 3"),
    "presets unknown": ("list presets brt", "preset: got 'brt', expected one of", "Did you mean 'bert'"),
    "tasks unknown": ("list tasks coal", "tasks: there is no 'coal'", "Did you mean 'cola'"),
    "demo epochs": ("demo --num_train_epochs inf --output_dir out", "training.num_train_epochs: got 'inf'"),
    "demo size": ("demo --train_size 6 --output_dir out", "train_size: got 6, expected a multiple of 4"),
    "demo time": ("demo --time_limit soon --output_dir out", "time_limit: got 'soon', expected a time"),
    "demo preset": ("demo --presets bert,brt --output_dir out", "preset: got 'brt'"),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tiny, tmp_path_factory) -> Path:
    """A folder with every file, encoder and run that the cases name. No case may change it."""
    from attentune.cli.main import main

    folder = tmp_path_factory.mktemp("mistakes")
    for name, content in FILES.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    write_reviews(folder / "train.csv", 24, seed=1)
    write_reviews(folder / "dev.csv", 10, seed=2)
    for name in ("encoder", "no-weights", "torn", "wordless"):
        shutil.copytree(tiny("bert"), folder / name)
    (folder / "no-weights" / "model.safetensors").unlink()
    weights = folder / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (folder / "wordless" / "tokenizer.json").unlink()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert main(shlex.split(BASE + "--output_dir run --num_train_epochs 1 --quiet")) == 0
    return folder


def content_of(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def check_message(err: str, place: str, *expected: str) -> None:
    """One message in the house's form: the place first, no words of the machinery."""
    messages = [line for line in err.splitlines() if line.startswith("attentune: ")]
    assert len(messages) == 1, err
    message = err[err.index("attentune: ") :]
    assert message.startswith(f"attentune: {place}")
    for text in expected:
        assert any(part in message for part in text.split("|")), message
    for word in ("Traceback", "Errno", "Error(", "internal error"):
        assert word not in err


@pytest.mark.parametrize("name", [*DATA, *SETTINGS, *OTHERS])
def test_a_mistake_is_told_and_nothing_is_written(attentune, place, monkeypatch, name):
    line, *expected = DATA.get(name) or SETTINGS.get(name) or OTHERS[name]
    if name not in OTHERS:
        line = f"{BASE} --output_dir out {line}"
    monkeypatch.chdir(place)
    before = content_of(place)
    status, out, err = attentune(*shlex.split(line))
    assert status == 2, err
    assert out == ""
    check_message(err, *expected)
    assert content_of(place) == before


def test_all_mistakes_are_told_at_once(attentune, place, monkeypatch):
    monkeypatch.chdir(place)
    flags = "--lerning_rate 1 --seed x --preset nope --max_length 2 --set model.head.knd=cls --set foo --output_dir out"
    status, out, err = attentune(*shlex.split(BASE + flags))
    assert (status, out) == (2, "")
    told = ("--lerning_rate:", "--set foo:", "preset:", "model.head.knd:", "training.seed:", "data.max_length:")
    assert [line.split()[:2] for line in err.splitlines()] == [["attentune:", name.split()[0]] for name in told]
    assert not (place / "out").exists()


@pytest.mark.parametrize("what", ["train.csv", "dev.csv", "encoder"])
def test_what_changed_since_the_kill_is_refused(attentune, place, tiny, tmp_path, monkeypatch, what):
    for name in ("train.csv", "dev.csv"):
        shutil.copy(place / name, tmp_path)
    shutil.copytree(place / "encoder", tmp_path / "encoder")
    monkeypatch.chdir(tmp_path)

    def stop(self, state, logs):
        if state.step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ProgressCallback, "on_step_end", stop)
        assert attentune(*shlex.split(BASE + "--save_steps 1 --num_train_epochs 3 --output_dir out"))[0] == 130
    if what == "encoder":
        shutil.rmtree("encoder")
        shutil.copytree(tiny("bert", seed=5), "encoder")
    else:
        path = Path(what)
        path.write_text(path.read_text().replace("film", "play"))
    before = content_of(tmp_path / "out" / "checkpoint-1")
    status, out, err = attentune("train", "--resume", "--output_dir", "out")
    assert (status, out) == (2, "")
    if what == "encoder":
        check_message(err, "the encoder is not the one", "Put the encoder back", "--overwrite_output_dir")
    else:
        check_message(err, "out: cannot be resumed: the rows (", "Put back", "--overwrite_output_dir")
    assert content_of(tmp_path / "out" / "checkpoint-1") == before
