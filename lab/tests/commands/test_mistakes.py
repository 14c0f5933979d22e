"""What users of the lab get wrong (mistakes.yaml), and its commands on a run of each kind."""

from pathlib import Path

import pytest
import yaml

from cli.test_kinds_of_tasks import ONE_MODEL, TRAINED, cells, check, home
from helpers.interrupted import run as trained

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    trained(folder, tiny("bert"), training__max_steps=1)
    return folder / "run"


@pytest.mark.parametrize(("line", "expected"), [(line, expected) for line, *expected in MISTAKES])
def test_a_mistake_is_told_in_one_message(run, attentune, tmp_path, monkeypatch, line, expected):
    monkeypatch.chdir(tmp_path)
    err = attentune.refused(*(run if word == "RUN" else word for word in line.split()))
    assert [words for words in expected if words not in err] == []
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


# Each command of the lab on a run of each kind of task and model works, or refuses before it uses the model.


__all__ = ["home"]
# Runs of auto were trained on all rows of their file.
OF_AUTO = dict.fromkeys(("ensemble", "ensemble multi-label", "ensemble score"), "--validation_file")
COMMANDS: dict[str, dict[str, str]] = {
    "label RUN": {
        **dict.fromkeys(TRAINED, "token"), **ONE_MODEL, **dict.fromkeys(("ssa", "ssa multi-label", "ssa score"), ""),
    },
    "layers RUN": {**dict.fromkeys(TRAINED, "was trained without squeeze"), **ONE_MODEL, **OF_AUTO, "sesame": ""},
    "faithfulness RUN --max_samples 2 --method gradient --beam 0": {
        **dict.fromkeys((k for k in TRAINED if "score" in k), "predicts a score"),
        **dict.fromkeys((k for k in TRAINED if "multi-label" in k), "several labels at once"),
        **ONE_MODEL,
    },
    "stress RUN": OF_AUTO,
}  # fmt: skip


@pytest.mark.parametrize(("words", "kind", "refusal"), list(cells(COMMANDS)))
def test_a_command_on_a_kind_of_run(home, tmp_path, capsys, words, kind, refusal):
    check(home, tmp_path, capsys, words, kind, refusal)
