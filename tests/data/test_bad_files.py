"""A bad file gives one message with its path, the line, the cause and the cure; never a traceback."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from attentune.config import DataConfig
from attentune.data.load import load_data
from attentune.errors import AttentuneError, ConfigError
from bad_files import BAD_FILES, GOOD, Bad


def test_there_are_many() -> None:
    assert len(BAD_FILES) >= 80


def message_about(bad: Bad, folder: Path) -> tuple[str, Path]:
    path, validation = folder / f"rows.{bad.ending}", folder / "dev.csv"
    path.write_bytes(bad.content)
    validation.write_text(GOOD)
    settings = {"train_file": str(path), "validation_file": str(validation), **bad.settings}
    with pytest.raises(AttentuneError) as caught:
        load_data(DataConfig(**settings), seed=0)
    return str(caught.value), path


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_with_place_cause_and_cure(tmp_path: Path, name: str) -> None:
    bad = BAD_FILES[name]
    message, path = message_about(bad, tmp_path)
    if bad.line is not None:
        assert message.startswith(f"{path}:{bad.line}: "), message
    elif "label_names: an ordinal" not in message:
        assert message.startswith(f"{path}:"), message
    for part in bad.says:
        assert any(one in message for one in part.split("|")), (part, message)
    assert len(message) < 2000, "a message is no copy of the file"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", message), "what a terminal could obey"
