"""What lab/docs says is so: command lines, blocks, outputs."""

import contextlib
import json
from pathlib import Path

import pytest

from attentune.cli.main import main
from attentune.plugins import command_names
from helpers.doc_blocks import LAB_PAGES, ROOT, name_of
from test_doc_blocks import Pages, check_blocks, ground, page, with_blocks
from test_doc_outputs import keys, run, shown
from test_docs import check_understood, command_lines

__all__ = ["ground", "page", "run"]


# What made the published figures, too.
RECORDS = [*sorted(ROOT.glob("results/**/*.md")), ROOT / "benchmarks/README.md", ROOT / "lab/README.md"]


@pytest.mark.parametrize("words", list(command_lines([*LAB_PAGES, *RECORDS])))
def test_a_documented_command_line_is_understood(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check_understood(words, capsys)


def test_every_command_has_a_section() -> None:
    (text,) = [path.read_text(encoding="utf-8") for path in LAB_PAGES if path.name == "commands.md"]
    assert [name for name in command_names() if f"\n## {name}\n" not in text] == []


@pytest.mark.integration
def test_token_labels_are_shown_as_they_are(run: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.chdir(run[0]):
        assert main(["label", "run", "--max_samples", "1"]) == 0
    tokens = json.loads(capsys.readouterr().out)
    assert keys(json.loads(shown("lab/docs/commands.md", '{"id"'))) == keys(tokens)


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in LAB_PAGES if with_blocks(path)], ids=name_of)
def test_the_blocks_of_a_page_run(path: Path, page: Pages) -> None:
    check_blocks(path, page)
