"""What README and documentation say is so: settings and defaults, command lines, links, Python."""

import argparse
import ast
import contextlib
import dataclasses
import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import attentune
from attentune.cli.flags import overrides_of
from attentune.cli.main import COMMANDS, main
from attentune.config import load_config
from attentune.config.parse import coerce
from attentune.data.builtin import spec_names
from attentune.metrics.metrics import METRICS
from attentune.plugins import command_module
from helpers import doc_blocks
from helpers.doc_blocks import LAB_PAGES, PAGES, ROOT, name_of, prose
from helpers.every_setting import every_setting
from helpers.samples import write_reviews

TEXTS = [*PAGES, *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"))]
_ROW = re.compile(r"^\| `([\w.]+)` \| `([^`]*)` \| .+ \|$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")


def blocks(path: Path, *kinds: str) -> list[str]:
    """The fenced blocks of these kinds, in order."""
    return [block.text for block in doc_blocks.blocks(path) if block.kind in kinds]


# Settings


@pytest.mark.parametrize("name", ["configuration.md", "commands.md"])
def test_the_generated_tables_are_current(name):
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert page == runpy.run_path(str(ROOT / "docs" / "generate.py"))["written"](name, page), "run `make docs`"


@pytest.mark.parametrize(("name", "hint", "field"), [pytest.param(*case, id=case[0]) for case in every_setting()])
def test_a_default_is_documented_as_it_can_be_typed(name, hint, field):
    rows = dict(_ROW.findall(prose(ROOT / "docs/configuration.md")))
    assert coerce(rows[name], hint) == field.default or (rows[name] == "null" and field.default is None)


def test_known_tasks_metrics_commands_and_public_names_are_documented():
    pages = ("data", "configuration", "commands", "python")
    tasks, metrics, commands, python = (prose(ROOT / f"docs/{page}.md") for page in pages)
    assert [name for name in METRICS if f"`{name}`" not in metrics] == []
    assert [name for name in spec_names() if f"`{name}`" not in tasks] == []
    assert [command for command in COMMANDS if f"\n## {command}\n" not in commands] == []
    assert [name for name in attentune.__all__ if not re.search(rf"`{name}\b", python)] == []


def test_yaml_blocks_that_are_settings_are_valid():
    found = [yaml.safe_load(text) for text in blocks(ROOT / "docs/configuration.md", "yaml")]
    assert found
    for content in found:
        given = {name: value for name, value in flat(content).items() if name != "preset"}
        load_config(preset=content.get("preset"), overrides=given)


def flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


# Command lines


def command_lines(pages: Iterable[Path] = TEXTS) -> Iterator[Any]:
    """Every `attentune ...` line in a block of commands, its continuations joined."""
    for path in pages:
        for block in blocks(path, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                if words[:1] == ["attentune"] and words[1:2] != ["COMMAND"]:
                    yield pytest.param(words[1:], id=f"{name_of(path)}: {' '.join(words)}")


@pytest.mark.parametrize("words", list(command_lines()))
def test_a_documented_command_line_is_understood(words, capsys):
    check_understood(words, capsys)


def check_understood(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The parser of the command takes these words."""
    command = words[0]
    if command == "list" and words[1] != "encoders":
        assert main(words) == 0
        assert capsys.readouterr().err == ""
        return
    if command in COMMANDS:
        parser = importlib.import_module(f"attentune.cli.{command}").parser(words[1:])
    else:
        parser = command_module(command).parser()
    parsed, problems = parser.parse(words[1:])
    assert problems == []
    # The values too, and whether they go together; a file of settings is not there to be read.
    load_config(overrides=overrides_of(parsed, problems), preset=getattr(parsed, "preset", None))
    assert problems == []


def test_the_first_commands_of_the_start_page_are_whole(capsys):
    (table,) = re.findall(r"## What do you have\?\n\n(.+?)\n\n", (ROOT / "docs/index.md").read_text("utf-8"), re.DOTALL)
    lines = [shlex.split(line)[1:] for line in re.findall(r"`(attentune [^`]+)`", table)]
    assert {words[0] for words in lines} >= {"auto", "train", "suggest", "compare", "report", "demo"}
    for words in lines:
        check_understood(words, capsys)
        assert {"auto", "compare"}.isdisjoint(words[:1]) or "--output_dir" in words  # name no folder


def test_there_are_command_lines_for_every_command_and_flags_are_checked():
    assert {case.values[0][0] for case in command_lines()} == set(COMMANDS)
    parser = importlib.import_module("attentune.cli.train").parser()
    assert isinstance(parser, argparse.ArgumentParser)
    assert parser.parse(["--no_such_flag", "1"])[1] != []


def test_readme_is_read_in_a_minute():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 200
    (rows,) = [part.strip().splitlines() for part in "\n".join(lines).split("\n\n") if part.startswith("| against ")]
    assert all(_LINK.search(row) for row in rows[2:])  # each figure is linked to its record


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {target for path in TEXTS for target in re.findall(r"(?:`|(?m:^))make ([a-z-]+)", path.read_text("utf-8"))}
    assert named
    assert named <= targets


# Links


def slugs(path: Path) -> set[str]:
    """The anchors of a page's headings, as Python-Markdown and GitHub both make them of plain words."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("path", [*TEXTS, *LAB_PAGES, ROOT / "lab" / "README.md"], ids=name_of)
def test_internal_links_lead_somewhere(path):
    for link in _LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{link}: there is no such file"
        assert target.is_relative_to(ROOT), f"{link}: outside of the repository"
        if anchor:
            assert anchor in slugs(target), f"{link}: there is no such heading"


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(pages_of(yaml.safe_load(text)["nav"])) == [path.name for path in PAGES]


@pytest.mark.integration
def test_the_documentation_builds_without_warnings(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert (tmp_path / "site/architecture/index.html").is_file()


def pages_of(nav: list[dict[str, Any]]) -> Iterator[str]:
    """The files of a navigation, whose entries are pages or sections of pages."""
    for entry in nav:
        for page in entry.values():
            yield from [page] if isinstance(page, str) else pages_of(page)


@pytest.mark.parametrize("path", [*TEXTS, *LAB_PAGES, ROOT / "mkdocs.yml", ROOT / "CITATION.cff"], ids=name_of)
def test_no_path_of_one_machine_is_named(path):
    assert not re.search(r"(?<![\w.])/(work|tmp|home|root|Users)/", path.read_text(encoding="utf-8"))


def test_the_citation_names_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == attentune.__version__
    assert citation["license"] == "Apache-2.0"
    assert f"## [{attentune.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


# Python


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_python_blocks_compile(path):
    for text in blocks(path, "python"):
        compile(text, name_of(path), "exec")


@pytest.mark.integration
@pytest.mark.parametrize("page", ["docs/python.md", "docs/quickstart.md", "docs/exporting.md", "README.md"])
def test_python_blocks_run(page, tiny, tmp_path, monkeypatch):
    """One after the other, as a reader would, with a tiny encoder in the place of the embedded one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attentune.models.build.resolve_encoder", lambda name: str(tiny("bert")))
    write_reviews(tmp_path / "reviews.csv")
    names: dict[str, Any] = {"__name__": "documentation"}
    code = [text for text in blocks(ROOT / page, "python") if "sys.argv" not in text]  # a script is no part of it
    assert code
    for text in code:
        with contextlib.redirect_stdout(None):
            exec(compile(text, page, "exec"), names)
    assert any((folder / "run.json").is_file() for folder in (tmp_path / "runs").iterdir())


def test_the_api_reference_has_every_public_name_under_its_home():
    named = re.findall(r"^::: (\S+)$", (ROOT / "docs/python.md").read_text(), re.MULTILINE)
    homes = {f"{home}.{name}" for name, home in attentune._PUBLIC.items()}
    rows = re.findall(r"^\| (`\w.*?) \| `(attentune[\w.]+)` \|", (ROOT / "docs/python.md").read_text(), re.MULTILINE)
    homes |= {f"{home}.{name}" for names, home in rows for name in re.findall(r"`(\w+)", names)}
    assert sorted(named) == sorted(homes)


# Flags that the pages for people who come from elsewhere name

# The arguments of transformers' run_glue.py and run_classification.py beside TrainingArguments' own.
SCRIPTS = (
    "task_name dataset_name dataset_config_name max_seq_length overwrite_cache pad_to_max_length "
    "max_train_samples max_eval_samples max_predict_samples train_file validation_file test_file "
    "do_regression text_column_names label_column_name metric_name train_split_name remove_columns "
    "shuffle_train_dataset model_name_or_path config_name tokenizer_name cache_dir use_fast_tokenizer "
    "model_revision token trust_remote_code ignore_mismatched_sizes"
)
_FLAG = re.compile(r"`--(\w+)")


def rows(page: str) -> list[tuple[str, str]]:
    """The rows of a page's tables, first cell and the rest."""
    lines = [line for line in prose(ROOT / "docs" / page).splitlines() if line.startswith("| `--")]
    return [(line.split(" | ")[0], line.split(" | ", 1)[1]) for line in lines]


def ours(command: str = "train") -> set[str]:
    """Every flag of a command."""
    parser = importlib.import_module(f"attentune.cli.{command}").parser()
    return {flag.removeprefix("--") for action in parser._actions for flag in action.option_strings}


def test_the_page_for_run_glue_names_flags_that_exist_on_both_sides():
    from transformers import TrainingArguments

    training = {field.name for field in dataclasses.fields(TrainingArguments)}
    page = prose(ROOT / "docs/which-tool.md")
    same = set(_FLAG.findall(page[page.index("With the same name") : page.index("| theirs | here |")]))
    assert same <= ours()
    theirs = same.union(*(_FLAG.findall(first) for first, _ in rows("which-tool.md")))
    assert theirs <= training | set(SCRIPTS.split())
    assert set(SCRIPTS.split()) <= theirs
    for first, meaning in rows("which-tool.md"):
        if not meaning.startswith(("not there", "refused", "omit them")):
            assert (found := _FLAG.findall(meaning)), first
            assert set(found) <= ours(), first


@pytest.mark.parametrize("page", ["which-tool.md", "data.md", "small-data.md"])
def test_flags_named_in_prose_exist(page):
    text = re.sub(r"^\| `--.*? \|", "", prose(ROOT / "docs" / page), flags=re.MULTILINE)
    theirs = {"do_train", "do_eval", "do_predict", "deepspeed", "fsdp", "no_cuda"}
    known = theirs.union(*(ours(command) for command in COMMANDS))
    assert set(_FLAG.findall(text)) <= known


# How the papers are read, and drawings


def test_each_of_the_54_rows_has_a_test_that_exists():
    page = (ROOT / "lab" / "docs" / "how-we-read-the-papers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\| `([^`]+)::([^`]+)` \|$", page, flags=re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 55))
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(named) >= len(rows)
    tests: dict[str, set[str]] = {}
    for file, name in named:
        if file not in tests:
            (path,) = [folder / file for folder in (ROOT / "tests", ROOT / "lab/tests") if (folder / file).is_file()]
            tree = ast.parse(path.read_text(encoding="utf-8"))
            tests[file] = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
        assert name in tests[file], (file, name)


_SVG = "{http://www.w3.org/2000/svg}"


def test_the_overview_shows_the_choices_of_each_slot():
    drawing = ElementTree.parse(ROOT / "docs/images/overview.svg")
    slots = {one.attrib["data-slot"]: one for one in drawing.iter(f"{_SVG}g") if "data-slot" in one.attrib}
    assert set(slots) == {"blur.where", "layer_mix.kind", "token_gate.kind", "head.kind"}
    for name, slot in slots.items():
        texts = [one.text or "" for one in slot.iter(f"{_SVG}text") if "s" in one.attrib["class"].split()]
        shown = " ".join(texts)
        words = [word.strip(" …") for word in shown.split(",")]
        choices = next(field.metadata["choices"] for path, _, field in every_setting() if path == f"model.{name}")
        # A list that ends in "…" names some of the choices, any other one all of them.
        assert set(words) <= set(choices), (name, shown)
        assert shown.endswith("…") == (set(words) != set(choices)), (name, shown)
