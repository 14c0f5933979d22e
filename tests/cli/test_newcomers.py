"""More than sixty mistakes of newcomers: flags of other tools, files as people have them; each answer names the cure.

Mistakes in settings and files that are named correctly are in test_mistakes.py.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
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
    "train train.csv --presets bert ssa-hybrid --output_dir out": ("--preset NAME", "attentune compare FILE --presets"),
    "train train.csv --lora --output_dir out": ("--lora: ", "--lora_rank"),
    "train train.csv --quantize int8 --output_dir out": ("--quantize: ", "attentune export RUN --quantize int8"),
    "train train.csv --resume_from_checkpoint out --output_dir out": ("--resume_from_checkpoint: ", "--resume"),
    "train train.csv --sheet_name two --output_dir out": ("--table: got 'two'", "no tables or sheets", "leave it out"),
    "auto train.csv --time 10m --output_dir out": ("--time: ", "--time_limit 10m"),
    "compare train.csv --presets bert sesame --output_dir out": (
        "'sesame': unexpected argument",
        "commas",
        "--presets bert,sesame",
    ),
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
    "train train.csv --method bert --output_dir out": ("--method: ", "--preset NAME", "attentune list presets"),
    "train train.csv --set model.blur.sgima=1 --output_dir out": ("model.blur.sgima", "Did you mean 'sigma'"),
    "train train.csv --set sigma=1 --output_dir out": ("--set sigma=1: expected SECTION.KEY=VALUE",),
    # flags of another command
    "predict run --text hi --batch_size 8": ("--batch_size: unknown flag", "a setting of training", "keeps"),
    "predict run --text hi --max_length 64": ("data.max_length", "which a finished run keeps"),
    "predict run --predict_file train.csv": ("--predict_file: ", "--input_file"),
    "predict run --input train.csv": ("--input: ", "--text or --input_file"),
    "predict --model_path run --text hi": ("--model_path: ", "without a flag, as in `attentune predict RUN`"),
    "evaluate run --learning_rate 1": ("training.learning_rate", "which a finished run keeps"),
    "predict run --text hi --output out.csv": ("--output: ", "--output_file"),
    "predict run --text hi --proba": ("--proba: ", "the probability of each class"),
    "predict run --text hi --top_k 3": ("--top_k: ", "the probability of each class"),
    "predict run --text hi --checkpoint best": ("--checkpoint: ", "in the place of the run"),
    "predict run train.csv": ("'train.csv': unexpected argument. Did you mean --input_file train.csv?",),
    "predict run 'so fine a film'": ("Did you mean --text 'so fine a film'?",),
    "predict run -t hi": ("'-t': unexpected argument", "two hyphens"),
    "predict train.csv --text hi": ("train.csv: holds no config.json", "it is a file", "RUN --input_file train.csv"),
    "evaluate run train.csv": ("Did you mean --validation_file train.csv?",),
    "serve run --workers 4": ("--workers: ", "one process"),
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
    "auto train.csv": ("training.output_dir: is missing", "--output_dir best"),
    "train https://example.org/reviews.csv --output_dir out": ("this is an address", "Download it first"),
    "train imdb --output_dir out": ("imdb: there is no such file", "--dataset_name imdb"),
    "auto missing.csv --output_dir out": ("missing.csv: there is no such file",),
    "auto train.csv --output_dir used": ("used: is not empty", "attentune auto", "another"),
    "adapt missing.csv --output_dir out": ("missing.csv: there is no such file",),
    "adapt train.csv --output_dir used": ("used: is not empty", "attentune adapt", "another"),
    "compare missing.csv --presets bert --output_dir out": ("missing.csv: there is no such file",),
    "compare train.csv --presets bert --output_dir used": ("used: holds thesis.txt and no compare.json", "another"),
    "search missing.csv --search lr=1e-5,1e-4 --output_dir out": ("missing.csv: there is no such file",),
    "search train.csv --search lr=1e-5,1e-4 --output_dir used": ("used: holds thesis.txt and no search.json",),
    "search train.csv --search learning_rat=1e-5,1e-4 --output_dir out": ("Did you mean 'learning_rate'",),
    "search train.csv --search lr=1e-5,high --output_dir out": ("training.learning_rate: got 'high'", "a number"),
    "search train.csv --search lr=1e-5,1e-4 --label Stars --output_dir out": ("there is no column 'Stars'",),
    "search train.csv --search max_length=64,9999 --output_dir out": ("at most 512 tokens", "--max_length 512"),
    "compare train.csv --presets bert --label Stars --output_dir out": ("there is no column 'Stars'",),
    "compare train.csv --presets bert --model ./nothing --output_dir out": ("./nothing: there is no such folder",),
    "train train.csv --fp16 --use_cpu --output_dir out": ("fp16 needs a GPU, but --use_cpu is given", "bf16"),
    "compare train.csv --presets bert --fp16 --use_cpu --output_dir out": ("fp16 needs a GPU", "auto, bf16 or fp32"),
    "auto train.csv --encoders ./nothing --output_dir out": ("./nothing: there is no such folder", "embedded"),
    "auto train.csv --portfolio bertt --output_dir out": ("--portfolio: got 'bertt'", "Did you mean 'bert'"),
    "auto train.csv --unlabeled_file more.csv --output_dir out": ("more.csv: there is no such file",),
    "adapt train.csv --text Text --output_dir out": ("there is no column 'Text'", "Did you mean 'text'"),
    "train --dataset_name ./nothing --output_dir out": ("./nothing: there is no such folder", "attentune train FILE"),
    "predict run --input_file train.csv --text_column Text": ("there is no column 'Text'", "Did you mean 'text'"),
    "predict run --input_file train.csv --max_eval_samples 9": ("--max_eval_samples: goes with --task", "all rows"),
    "predict run --input_file train.csv --keep_columns day": ("no column 'day'", "--keep_columns"),
    "explain run --input_file train.csv --text_column Text": ("there is no column 'Text'", "Did you mean 'text'"),
    "evaluate run --validation_file train.csv --label_column Stars": ("no column 'Stars'", "--label_column"),
    "search train.csv --output_dir out": ("got nothing to vary", "--search NAME=VALUES"),
    "doctor missing.csv": ("missing.csv: there is no such file",),
    "doctor train.cvs": ("Did you mean 'train.csv'",),
    "doctor train.csv --labels --output_file train.csv": ("--output_file: got train.csv", "overwritten", "another"),
    "init missing.csv": ("missing.csv: there is no such file",),
    "train": ("training.output_dir: is missing", "rows to train on: attentune train FILE"),
    "train train.csv --text label --label label --output_dir out": ("given as the text and as the label",),
    "predict run --input_file missing.csv": ("missing.csv: there is no such file",),
    "predict run --input_file train.csv --output_file ./train.csv": ("got ./train.csv", "overwritten", "another"),
    "predict run --input_file train.csv --output_file used": ("used is a folder", "choose another name"),
    "evaluate run --validation_file train.csv --errors_file train.csv": ("--errors_file: ", "overwritten"),
    "suggest run --input_file train.csv --output_file train.csv": ("--output_file: ", "overwritten"),
    "evaluate rnu": ("rnu: holds no config.json", "Did you mean 'run'"),
    "explain rnu --input_file train.csv --output_dir out": ("rnu: holds no config.json", "Did you mean 'run'"),
    "explain rnu --text hi": ("rnu: holds no config.json", "Did you mean 'run'"),
    "serve rnu": ("rnu: holds no config.json", "Did you mean 'run'"),
    "export used --output_dir out": ("used: holds no config.json, expected the folder of a finished run",),
    "export run --output_dir used": ("--output_dir: used is there and not an empty folder", "another"),
    "export run --format hf --output_dir out": ("--format: got 'hf'", "Did you mean 'transformers'"),
    "export run --format openvino --output_dir out": ("--format: got 'openvino'", "the graph of 'onnx'"),
    "export run --quantize int4 --output_dir out": ("--quantize: got 'int4', expected int8",),
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
    "explain run --text hi --method limes": ("method: got 'limes'", "Did you mean 'lime'"),
    "train.csv": ("'train.csv': unknown command", "`attentune train train.csv`"),
    "--lr 2e-5": ("'--lr': unknown command", "The command comes first"),
    "train train.csv --set learning_rate=1e-5 --output_dir out": ("--set training.learning_rate=1e-5?",),
    "train train.csv --model ./nix --output_dir out": ("./nix: there is no such folder", "config.json"),
    "train train.csv --model folder --output_dir out": ("folder: the folder has no config.json", "save_pretrained"),
    "train train.csv --model bert-base-uncasd --output_dir out": (
        "bert-base-uncasd: no encoder could be loaded",
        "HF_HUB_OFFLINE",
        "Did you mean 'bert-base-uncased'",
    ),
    "train train.csv --model encoder --max_length 512 --output_dir out": (
        "accepts at most 40 tokens",
        "--max_length 40",
    ),
    "list encoders bert-base-uncaesd": ("is neither a known encoder nor a folder", "Did you mean 'bert-base-uncased'"),
    "list encoders folder --measure": ("folder: is neither a known encoder nor a folder with config.json",),
    "list encoders --language German": ("--language: unknown flag",),
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
    for name in ("run", "encoder"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text('{"model_type": "bert", "max_position_embeddings": 40}')
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
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = sorted(place.rglob("*"))
    status, out, err = attentune(*shlex.split(line))
    assert status == 2, err
    assert out == ""
    for expected in MISTAKES[line]:
        assert any(part in err for part in expected.split("|")), err
    for word in ("Traceback", "internal error", "Errno"):
        assert word not in err
    assert sorted(place.rglob("*")) == before


# Runs command lines one after the other; those after which PyTorch is imported are written to standard output.
_PROGRAM = """
import contextlib, io, json, shlex, sys
from attentune.cli.main import main
for line in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()):
        main(shlex.split(line))
    if {"torch", "transformers", "datasets"} & set(sys.modules):
        sys.exit(line)
"""


@pytest.mark.integration
def test_all_are_told_before_anything_that_takes_seconds_is_imported(place: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input=json.dumps(list(MISTAKES)), cwd=place, env=environment,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
