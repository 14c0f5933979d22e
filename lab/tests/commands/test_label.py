"""`attentune label`: token labels as JSON lines, of a run's own rows and of others."""

import json
from pathlib import Path
from typing import Any

from attentune.token_labels.listing import list_tokens
from token_labels.test_listing import run

__all__ = ["run"]


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_command_writes_json_lines(run: Path, tmp_path: Path, attentune) -> None:
    status, out, _ = attentune("label", run, "--max_samples", 3)
    assert status == 0
    assert parsed(out) == list(list_tokens(run, max_samples=3))
    target = tmp_path / "labels.jsonl"
    status, out, err = attentune("label", run, "--split", "validation", "--output_file", target)
    assert (status, out) == (0, "")
    assert "20 rows written" in err
    assert len(parsed(target.read_text())) == 20


def test_the_command_reads_other_texts(run: Path, tmp_path: Path, attentune) -> None:
    file = tmp_path / "new.csv"
    file.write_text("text\na dull film\n")
    status, out, _ = attentune("label", run, "--input_file", file)
    assert status == 0
    assert next(token["text"] for token in parsed(out)[0]["tokens"]) == "a"
