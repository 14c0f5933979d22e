"""Misspelt flags, settings, commands and values: status 2, and the right word in the message."""

from __future__ import annotations

import importlib
import shlex

import pytest

from attentune.cli.main import COMMANDS
from attentune.config.parse import nearest
from attentune.plugins import command_module, command_names

# Those of other packages too, such as the lab's where it is installed.
EVERY = (*COMMANDS, *command_names())


def flags_of(command: str) -> list[str]:
    is_own = command in COMMANDS
    name = f"attentune.cli.{command.replace('-', '_')}"
    parser = (importlib.import_module(name) if is_own else command_module(command)).parser()
    return [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]


def swaps(word: str) -> list[str]:
    """Return the word with each two neighbouring letters swapped, the last ones first."""
    pairs = [(place, word[place : place + 2]) for place in range(len(word) - 2, -1, -1)]
    letters = [(place, pair) for place, pair in pairs if pair.isalnum() and pair[0] != pair[1]]
    return [word[:place] + pair[::-1] + word[place + 2 :] for place, pair in letters]


@pytest.mark.parametrize("command", EVERY)
def test_a_flag_with_swapped_letters_is_answered_with_the_right_one(attentune, command):
    flags = flags_of(command)
    meant = {word: flag for flag in flags for word in swaps(flag)[:2] if word not in flags}
    status, out, err = attentune(command, *(f"{word}=x" for word in meant))
    assert (status, out) == (2, "")
    for word, flag in meant.items():
        assert f"{word}: unknown flag. Did you mean '{flag}'?" in err


@pytest.mark.parametrize("command", EVERY)
def test_no_flag_is_taken_for_one_that_it_begins(attentune, command):
    flags = flags_of(command)
    begun = {part for flag in flags for part in (flag[:5], flag[:-1]) if len(part) > 2} - set(flags)
    status, out, err = attentune(command, *(f"{word}=x" for word in begun))
    assert (status, out) == (2, "")
    assert [word for word in begun if f"{word}: unknown flag." not in err] == []


@pytest.mark.parametrize("words", ["train t.csv --lable mood", "predict run --lable mood", "doctor t.csv --lable=mood"])
def test_lable_is_label(attentune, words):
    status, _, err = attentune(*words.split())
    assert status == 2
    assert "--lable: unknown flag. Did you mean '--label'?" in err


@pytest.mark.parametrize("command", [command for command in EVERY if swaps(command)])
def test_a_command_with_swapped_letters_is_answered_with_the_right_one(attentune, command):
    for words in ((swaps(command)[0], "x"), ("help", swaps(command)[0]), (command.upper(),)):
        status, out, err = attentune(*words)
        assert (status, out) == (2, "")
        assert f"unknown command. Did you mean '{command}'?" in err


WORDS = {
    "a setting": ("train t.csv --set training.sede=1", "'seed'"),
    "a section": ("train t.csv --set trainig.seed=1", "'training'"),
    "a section below": ("train t.csv --set model.haed.kind=mean", "'head'"),
    "a setting below": ("train t.csv --set model.head.knid=mean", "'kind'"),
    "a value below": ("train t.csv --set model.head.kind=maen", "'mean'"),
    "no section": ("train t.csv --set sede=1", "--set training.seed=1"),
    "another section": ("train t.csv --set model.learning_rate=1", "'training.learning_rate'"),
    "capitals": ("train t.csv --LABEL mood", "'--label'"),
    "preset": ("train t.csv --preset bret", "'bert'"),
    "metric": ("train t.csv --metric_for_best_model accuarcy", "'accuracy'"),
    "strategy": ("train t.csv --eval_strategy epcoh", "'epoch'"),
    "loss": ("train t.csv --loss foacl", "'focal'"),
    "weights": ("train t.csv --class_weights balanecd", "'balanced'"),
    "precision": ("train t.csv --precision bf61", "'bf16'"),
    "scheduler": ("train t.csv --lr_scheduler_type lienar", "'linear'"),
    "type of task": ("train t.csv --task_type regresion", "'regression'"),
    "baseline": ("train t.csv --baselines majoirty", "'majority'"),
    "task": ("train --task coal", "'cola'"),
    "format": ("train t.csv --format jsno", "'json'"),
    "presets": ("compare t.csv --presets bert,bret", "'bert'"),
    "a method to compare with": ("compare t.csv --presets bert,bert-mean --baseline bert-maen", "'bert-mean'"),
    "executor": ("compare t.csv --presets bert --executor loacl", "'local'"),
    "space": ("search t.csv --space ssaa", "'ssa'"),
    "sampler": ("search t.csv --space bert --sampler tep", "'tpe'"),
    "pruner": ("search t.csv --space bert --sampler tpe --pruner meidan", "'median'"),
    "rule": ("search t.csv --space bert --choose scoer", "'score'"),
    "a setting to search": ("search t.csv --search learning_rtae=1e-5,2e-5", "'learning_rate'"),
    "member": ("auto t.csv --portfolio bert-maen", "'bert-mean'"),
    "member left out": ("auto t.csv --exclude tfidf-liner", "'tfidf-linear'"),
    "delivery": ("auto t.csv --deliver sinlge", "'single'"),
    "preset to show": ("list presets bret", "'bert'"),
    "preset to count": ("params bret", "'bert'"),
    "encoder": ("list encoders embeddde", "'embedded'"),
    "preset of the demo": ("demo --presets bret", "'bert'"),
}


@pytest.mark.parametrize("case", WORDS)
def test_a_misspelt_word_is_answered_with_the_right_one(attentune, tmp_path, monkeypatch, case):
    line, meant = WORDS[case]
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{word} film {number},{label}" for number in range(12) for word, label in (("good", "pos"), ("dull", "neg"))
    ]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows, ""]))
    words = shlex.split(line)
    folder = [] if words[0] in ("run-ssa", "list", "params") else ["--output_dir", "out"]
    status, out, err = attentune(*words, *folder)
    assert (status, out) == (2, "")
    assert f"Did you mean {meant}?" in err


def test_the_nearest_word():
    assert nearest("lable", ["table", "label", "label_column"]) == "label"
    assert nearest("adam_bet1a", ["adam_beta2", "adam_beta1"]) == "adam_beta1"
    assert nearest("pos", ["positively", "positive", "negative"]) == "positive"
    assert nearest("GOOD", ["bad", "Good"]) == "Good"
    assert nearest("xyz", ["label"]) is None
