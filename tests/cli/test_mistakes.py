"""What users get wrong: status 2 and one message that names place and cure; nothing is written.

mistakes.yaml has the command lines; those of `before torch` are answered before anything is imported that takes
seconds.
"""

import contextlib
import importlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from attentune.cli.main import COMMANDS, main
from attentune.config.parse import nearest
from attentune.plugins import command_module, command_names, install_command
from attentune.training.callbacks import ProgressDisplay
from helpers.samples import write_reviews
from helpers.tiers import leading

TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))
LIGHT = {line: expected for line, *expected in TABLE["before torch"]}
LACKING = {line: expected for line, *expected in TABLE["without a package"]}
MISTAKES = LIGHT | {line: expected for line, *expected in TABLE["after torch"]}
DATA = "--train_file train.csv --validation_file dev.csv --model_name_or_path encoder --max_length 32 --use_cpu"
# What words in capitals in the table stand for.
_MORE = "--validation_file dev.csv --model encoder OUT"
SHORT = {
    "TRAIN": f"train {DATA} OUT",
    "AUTO": f"auto train.csv {_MORE}",
    "COMPARE": f"compare train.csv {_MORE}",
    "SEARCH": f"search train.csv {_MORE}",
    "PAIRS": "train pairs.csv --text_column text --text_pair_column second --model encoder OUT",
    "TOPICS": "train topics.jsonl --task_type multi_label --label_column topics --model encoder OUT",
    "SCORES": "--train_file two-scores.csv --validation_file null --task_type regression",
    "OUT": "--output_dir out",
}

GOOD = "id,text,label\n1,the film was fine,good\n2,a dull story,bad\n"
FILES: dict[str, bytes | str] = TABLE["files"] | {
    "mixed.csv": GOOD.encode() + "3,größer,good\n".encode() + "4,café,good\n".encode("latin-1"),
    "half-points.csv": "text,score\n" + "".join(f"visit {n},{1 + n % 4 / 2:g}\n" for n in range(40)),
    "pairs.csv": "text,second,label,stars\n" + "".join(f"so {n},so,{'no' * (n % 2)}yes,{n % 3}\n" for n in range(12)),
    "topics.jsonl": "".join(
        json.dumps({"text": f"so {n}", "topics": ["food", "sky"][: n % 3]}) + "\n" for n in range(9)
    ),
    "headless.csv": "the film was fine,3\na dull story,1\n" * 8,
}


def words_of(line: str) -> list[str]:
    """Split a line of the table."""
    for short, words in SHORT.items():
        line = re.sub(rf"\b{short}\b", lambda _, words=words: words, line)
    return shlex.split(line)


@pytest.fixture(scope="module")
def place(tiny, tmp_path_factory):
    """A folder with every file, encoder and run that the lines name. No line may change it."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    write_reviews(folder / "train.csv", 24, seed=1)
    write_reviews(folder / "dev.csv", 10, seed=2)
    for name in ("encoder", "no-weights", "torn", "wordless"):
        shutil.copytree(tiny("bert"), folder / name)
    (folder / "no-weights" / "model.safetensors").unlink()
    weights = folder / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (folder / "wordless" / "tokenizer.json").unlink()
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        assert main(shlex.split(f"train {DATA} --output_dir run --num_train_epochs 1 --quiet")) == 0
    return folder


def content_of(folder: Path) -> dict[str, tuple[int, int] | None]:
    """Size and time of change of each file; reading all of them before and after each line would take longer."""
    found = {str(path): path.stat() if path.is_file() else None for path in sorted(folder.rglob("*"))}
    return {path: stat and (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.fixture(scope="module")
def untouched(place):
    return content_of(place)


def check_message(err: str, *expected: str) -> None:
    """One message in the house's form, no words of the machinery."""
    assert "attentune: " in err
    for text in expected:
        assert any(part in err for part in text.split("|")), err
    for word in ("Traceback", "Errno", "Error(", "internal error"):
        assert word not in err


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_and_nothing_is_written(attentune, place, untouched, monkeypatch, line):
    monkeypatch.chdir(place)
    monkeypatch.delenv("ATTENTUNE_DATA", raising=False)  # with data at hand some would be no mistakes
    err = attentune.refused(*words_of(line))
    check_message(err, *MISTAKES[line])
    assert content_of(place) == untouched


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("out of memory for the buffers of gelu"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 50331648 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.\nException raised from malloc"),
    ],
    ids=["python", "buffers", "cpu", "gpu"],
)
def test_running_out_of_memory_is_no_bug_of_ours(attentune, monkeypatch, error):
    def fail(arguments):
        raise error

    monkeypatch.setattr("attentune.cli.list.run", fail)
    err = attentune.refused("list", "presets")
    check_message(err, "out of memory", "--gradient_accumulation_steps 4")
    assert str(error).partition("\n")[0] in err


@pytest.mark.parametrize("line", LACKING)
def test_a_package_that_is_missing_is_told_with_the_command_that_installs_it(attentune, place, monkeypatch, line):
    module, extra, *expected = LACKING[line]
    monkeypatch.chdir(place)
    monkeypatch.setitem(sys.modules, module, None)
    before = content_of(place)
    err = attentune.refused(*words_of(line))
    check_message(err, *expected, f"not installed; run: {install_command(extra)}\n")
    assert content_of(place) == before


def test_every_extra_has_its_message():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    used = {extra for _, extra, *_ in LACKING.values()}
    assert used == {*project["optional-dependencies"]} - {"bench", "dev", "embedded", "mutation"}


def test_every_command_has_a_mistake():
    assert set(COMMANDS) <= {line.split()[0].lower() for line in MISTAKES}


# Runs the command lines one after the other, and ends at the first one after which a heavy module is imported.
_PROGRAM = """
import contextlib, io, json, sys
from attentune.cli.main import main
for words in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()):
        main(words)
    if found := {"torch", "transformers", "datasets", "accelerate", "pandas", "scipy", "sklearn"} & set(sys.modules):
        sys.exit(f"{words}: {found}")
"""


@pytest.mark.integration
def test_before_torch_is_before_torch(place):
    lines = json.dumps([words_of(line) for line in LIGHT])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input=lines, cwd=place, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_all_mistakes_are_told_at_once(attentune, place, monkeypatch):
    monkeypatch.chdir(place)
    flags = "--lerning_rate 1 --seed x --preset nope --max_length 2 --set model.head.knd=cls --set foo"
    err = attentune.refused(*words_of(f"TRAIN {flags}"))
    told = ("--lerning_rate:", "--set foo:", "preset:", "model.head.knd:", "--max_length:", "--seed:")
    assert [line.split()[:2] for line in err.splitlines()] == [["attentune:", name.split()[0]] for name in told]


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
        patched.setattr(ProgressDisplay, "on_step_end", stop)
        assert attentune(*words_of("TRAIN --save_steps 1 --num_train_epochs 3"))[0] == 130
    if what == "encoder":
        shutil.rmtree("encoder")
        shutil.copytree(tiny("bert", seed=5), "encoder")
    else:
        path = Path(what)
        path.write_text(path.read_text().replace("film", "play"))
    before = content_of(tmp_path / "out" / "checkpoint-1")
    err = attentune.refused("train", "--resume", "--output_dir", "out")
    what_differs = "the encoder is not the one" if what == "encoder" else "out: cannot be resumed: the rows ("
    check_message(err, what_differs, "Put ", "--overwrite_output_dir")
    assert content_of(tmp_path / "out" / "checkpoint-1") == before


# Misspelt words: every flag and command, those of other packages too.
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


@leading("turn", [0, 1])
@pytest.mark.parametrize("command", EVERY)
def test_a_misspelt_or_shortened_flag_is_answered_with_the_right_one(attentune, command, turn):
    flags = flags_of(command)
    # By turns the last letters swapped or those before them, and a beginning or all but the end.
    meant = {word: flag for place, flag in enumerate(flags, start=turn) for word in swaps(flag)[place % 2 :][:1]}
    meant = {word: flag for word, flag in meant.items() if word not in flags}
    parts = {flag[:5] if place % 2 else flag[:-1] for place, flag in enumerate(flags, start=turn)}
    begun = {part for part in parts if len(part) > 2} - set(flags)
    err = attentune.refused(command, *(f"{word}=x" for word in [*meant, *begun]))
    for word, flag in meant.items():
        assert f"{word}: unknown flag. Did you mean '{flag}'?" in err
    assert [word for word in begun if f"{word}: unknown flag." not in err] == []


@pytest.mark.parametrize("command", [command for command in EVERY if swaps(command)])
def test_a_misspelt_command_is_answered_with_the_right_one(attentune, command):
    for words in ((swaps(command)[0], "x"), ("help", swaps(command)[0]), (command.upper(),)):
        err = attentune.refused(*words)
        assert f"unknown command. Did you mean '{command}'?" in err


def test_the_nearest_word():
    assert nearest("lable", ["table", "label", "label_column"]) == "label"
    assert nearest("adam_bet1a", ["adam_beta2", "adam_beta1"]) == "adam_beta1"
    assert nearest("pos", ["positively", "positive", "negative"]) == "positive"
    assert nearest("GOOD", ["bad", "Good"]) == "Good"
    assert nearest("xyz", ["label"]) is None
