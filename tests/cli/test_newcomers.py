"""Sixty mistakes of newcomers: flags of other tools, files as people have them, wrong words; each answer is a cure.

Mistakes in settings and files that are named correctly are in test_mistakes.py.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from helpers.samples import write_reviews

# A command line, and what its answer must contain.
FLAGS: dict[str, tuple[str, ...]] = {
    # transformers: run_glue.py, run_classification.py, TrainingArguments
    "train train.csv --do_train --output_dir out": ("--do_train: unknown flag", "always trains", "leave it out"),
    "train train.csv --do_predict --output_dir out": ("--do_predict", "attentune predict RUN --input_file FILE"),
    "train train.csv --optim adamw_torch --output_dir out": ("--optim: ", "AdamW", "--weight_decay"),
    "train train.csv --learning-rte 1e-5 --output_dir out": ("--learning_rte: ", "Did you mean '--learning_rate'"),
    "train train.csv --warmup_step 10 --output_dir out": ("--warmup_step: ", "Did you mean '--warmup_steps'"),
    "train train.csv --num_labels 2 --output_dir out": ("--num_labels: ", "those of the rows", "leave it out"),
    "train train.csv --lr_scheduler polynomial --output_dir out": ("got 'polynomial'", "one of linear, cosine"),
    "train train.csv --per_gpu_train_batch_size 8 --output_dir out": ("Did you mean '--per_device_train_batch_size'",),
    # SetFit
    "train train.csv --num_iterations 20 --output_dir out": ("SetFit", "--preset frozen-linear"),
    "train train.csv --body_learning_rate 1e-5 --output_dir out": ("--encoder_learning_rate",),
    "train train.csv --head_learning_rate 1e-2 --output_dir out": ("--learning_rate", "--encoder_learning_rate"),
    "train train.csv --model_id ./nix --max_seq_length 8 --batch_size x --output_dir out": (
        "training.per_device_train_batch_size: got 'x'",
        "a whole number",
    ),
    # scikit-learn
    "train train.csv --test_size 0.2 --output_dir out": ("--test_size: ", "--validation_share"),
    "train train.csv --random_state x --output_dir out": ("training.seed: got 'x'", "a whole number"),
    "train train.csv --class_weight balanced --output_dir out": ("--class_weights balanced",),
    "train train.csv --n_splits 5 --output_dir out": ("--folds",),
    "train train.csv --max_iter 100 --output_dir out": ("--num_train_epochs", "--max_steps"),
    "auto train.csv --n_jobs 2 --output_dir out": ("--n_jobs: ", "--jobs"),
    # Ludwig, AutoGluon, fastText
    "train --dataset train.csv --output_dir out": ("--dataset: ", "attentune train FILE", "--dataset_name"),
    "train train.csv --output_directory out": ("--output_directory: ", "--output_dir"),
    "train train.csv --gpus 0 --output_dir out": ("--gpus: ", "a GPU is used where there is one", "--use_cpu"),
    "train --data train.csv --output_dir out": ("--data: ", "attentune train FILE", "--task"),
    "train --input train.csv --output_dir out": ("--input: ", "attentune train FILE"),
    "train --data_path train.csv --output_dir out": ("--data_path: ", "attentune train FILE", "--data_dir"),
    "train train.csv --x_col txt --y_col label --output_dir out": ("there is no column 'txt'", "Did you mean 'text'"),
    "train train.csv --device cuda --output_dir out": ("--device: ", "--use_cpu"),
    # settings and presets as flags
    "train train.csv --sigma 0.3 --output_dir out": ("--sigma: ", "--set model.blur.sigma=VALUE"),
    "train train.csv --gamma 2 --output_dir out": ("--gamma: ", "--focal_gamma", "--loss focal"),
    "train train.csv --squeeze true --output_dir out": ("--squeeze: ", "--set model.layer_mix.squeeze=VALUE"),
    "train train.csv --sesame --output_dir out": ("sesame is a preset: --preset sesame",),
    "train train.csv --method bert --output_dir out": ("--method: ", "--preset NAME", "attentune presets"),
    "train train.csv --set model.blur.sgima=1 --output_dir out": ("model.blur.sgima", "Did you mean 'sigma'"),
    "train train.csv --set sigma=1 --output_dir out": ("--set sigma=1: expected SECTION.KEY=VALUE",),
    # flags of another command
    "predict run --text hi --batch_size 8": ("--batch_size: unknown flag", "a setting of training", "keeps"),
    "predict run --text hi --max_length 64": ("data.max_length", "which a finished run keeps"),
    "predict run --predict_file train.csv": ("--predict_file: ", "--input_file"),
    "predict run --input train.csv": ("--input: ", "--text or --input_file"),
    "predict --model_path run --text hi": ("--model_path: ", "without a flag, as in `attentune predict RUN`"),
    "evaluate run --learning_rate 1": ("training.learning_rate", "which a finished run keeps"),
    "explain run --texts hi": ("--texts: ", "--text", "--input_file"),
}
FILES: dict[str, tuple[str, ...]] = {
    "train missing.csv --output_dir out": ("missing.csv: there is no such file",),
    "train train.cvs --output_dir out": ("train.cvs: there is no such file", "Did you mean 'train.csv'"),
    "train folder --output_dir out": ("folder: this is a folder, expected a file",),
    "train notes.docx --output_dir out": ("notes.docx: the name ends in '.docx'", ".csv", "convert"),
    "train archive.zip --output_dir out": ("archive.zip: the name ends in '.zip'", "expected one of .csv"),
    "train bare --output_dir out": ("bare: the name ends in 'nothing known'", "Rename it"),
    "train html.csv --output_dir out": ("html.csv:1: this is an HTML page", "sign in", "open it in a browser"),
    "predict run --text hi --output_file out.xlsx": ("predictions are written as CSV", "--output_dir"),
    "train rows.dat --output_dir out": ("rows.dat: the name ends in '.dat'", "--file_format"),
    "train - --output_dir out": ("--train_file: got -, which is standard input", "Save them to a file: ... > rows.csv"),
    "predict run --input_file - --output_dir out": ("--input_file: got -", "leave --output_dir out"),
    "train page.xlsx --output_dir out": ("page.xlsx:1: this is an HTML page",),
    "train headless.csv --output_dir out": ("headless.csv:1: the first line", "reads like a row", "--no_header"),
    "train headless.csv --text_column text --output_dir out": ("reads like a row: 'the film was fine', '3'",),
    "train headless.csv --no_header --text_column text --label_column column_2 --output_dir out": (
        "no column 'text'",
        "'column_1'",
    ),
    "train train.csv --label_column Stars --output_dir out": ("there is no column 'Stars'", "'label'"),
    "train train.csv --text_column Text --output_dir out": ("there is no column 'Text'", "Did you mean 'text'"),
    "train train.csv --test_file tset.csv --output_dir out": ("tset.csv: there is no such file",),
    "train train.csv dev.csv --output_dir out": ("'dev.csv': unexpected argument",),
    "train --dataset_name reviews": ("training.output_dir: is missing", "--output_dir runs/my-run"),
    "train train.csv --output_dir used": ("used: is not empty", "--overwrite_output_dir", "another folder"),
    "train train.csv --output_dir used --overwrite_output_dir": ("used: holds no config.yaml", "Name another"),
    "train train.csv --output_dir train.csv": ("train.csv: ", "another"),
}
WORDS: dict[str, tuple[str, ...]] = {
    "finetune train.csv": ("'finetune': unknown command", "train"),
    "evalute run": ("'evalute': unknown command", "Did you mean 'evaluate'"),
    "train train.csv --preset roberta --output_dir out": ("preset: got 'roberta'", "expected one of"),
    "train train.csv --preset SSA-Hybrid --output_dir out": ("got 'SSA-Hybrid'", "Did you mean 'ssa-hybrid'"),
    "train --task sst-3 --output_dir out": ("data.task: ", "sst"),
    "predict rnu --text hi": ("rnu: holds no config.json", "no such folder", "Did you mean 'run'"),
    "train train.csv --epochs three --output_dir out": ("training.num_train_epochs: got 'three'", "a number"),
    "train train.csv --lr 2e-5, --output_dir out": ("training.learning_rate: got '2e-5,'", "a number"),
    "train train.csv --task_type multiclass --output_dir out": ("data.task_type: got 'multiclass'", "classification"),
    "train train.csv --config train.csv --output_dir out": ("train.csv", "expected sections|not valid YAML"),
}
WORDS |= {
    "encoders bert-base-uncaesd": ("is neither a known encoder nor a folder", "Did you mean 'bert-base-uncased'"),
    "encoders folder --measure": ("folder: is neither a known encoder nor a folder with config.json",),
    "encoders --language German": ("--language: unknown flag",),
}
MISTAKES = {**FLAGS, **FILES, **WORDS}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the files that the cases name. No case may change it."""
    folder = tmp_path_factory.mktemp("newcomers")
    write_reviews(folder / "train.csv", 24, seed=1)
    write_reviews(folder / "dev.csv", 10, seed=2)
    (folder / "folder").mkdir()
    (folder / "used").mkdir()
    (folder / "used" / "thesis.txt").write_text("not to be deleted")
    (folder / "run").mkdir()
    (folder / "notes.docx").write_bytes(b"PK\x03\x04")
    (folder / "archive.zip").write_bytes(b"PK\x03\x04")
    (folder / "bare").write_text("text,label\n")
    (folder / "html.csv").write_text("<!DOCTYPE html>\n<html><body>Sign in, please</body></html>\n")
    (folder / "rows.dat").write_text("text,label\nso fine,good\n")
    (folder / "page.xlsx").write_text("<html><body>404</body></html>\n")
    (folder / "headless.csv").write_text("the film was fine,3\na dull story,1\n" * 8)
    return folder


def test_there_are_sixty() -> None:
    assert len(MISTAKES) >= 60


@pytest.mark.parametrize("line", MISTAKES)
def test_the_answer_names_the_cure(attentune, place: Path, monkeypatch, line: str) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    heavy = {name for name in ("torch", "transformers", "datasets") if name in sys.modules}
    status, out, err = attentune(*shlex.split(line))
    assert status == 2, err
    assert out == ""
    for expected in MISTAKES[line]:
        assert any(part in err for part in expected.split("|")), err
    for word in ("Traceback", "internal error", "Errno"):
        assert word not in err
    assert sorted(place.rglob("*")) == before
    # Told at once: nothing was imported that takes seconds.
    assert {name for name in ("torch", "transformers", "datasets") if name in sys.modules} == heavy
