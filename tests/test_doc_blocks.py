"""Every block of README and documentation is run, page by page from top to bottom, as a reader would.

Each page has a folder of its own with the files and the earlier runs that it names (doc_blocks.py). The embedded
encoder is a tiny one, in a package of its name; `bert-base-uncased` is a folder; data sets are cuts of the real ones.
What cannot run and what is made smaller stands there too.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attentune.cli.main import main
from attentune.config import load_config
from helpers import doc_blocks as material
from helpers.doc_blocks import (
    COMMANDS,
    LAB_PAGES,
    NOT_RUN,
    PAGES,
    PYTHON,
    ROOT,
    Block,
    added,
    all_commands,
    blocks,
    name_of,
    smaller,
)
from helpers.plugin_package import forget

TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
# Blocks that are files: how they begin -> the name that the page gives the file.
FILES = {
    ("docs/configuration.md", "preset: bert-cls-mean"): "mine.yaml",
    ("docs/comparing.md", "ssa-hybrid:\n  preset"): "methods.yaml",
    ("docs/data.md", "classes:"): "orders.yaml",
    ("docs/small-data.md", "frozen:"): "regimes.yaml",
    ("lab/docs/reproducing.md", "tasks: [rte, mrpc]"): "mine.yaml",
    ("docs/several-processes.md", "# kuberay.yaml"): "kuberay.yaml",
}
# Python that is a script: the words behind its name.
SCRIPTS = {
    ("docs/exporting.md", "import json"): ["served/reviews", "a fine film", "a dull film"],
    ("docs/reliability.md", "# convert.py"): [],
}
# More of what a page's reader has beforehand.
MORE: dict[str, list[Callable[[Path], None]]] = {
    "lab/docs/commands.md": [material.write_released],
    "lab/docs/released-ssa.md": [material.write_released],
    "docs/auto.md": [material.write_orders],
    "docs/data.md": [material.write_answers, material.write_dataset],
    "docs/reliability.md": [material.write_pickle],
    "docs/several-processes.md": [material.write_corpus],
    "docs/architecture.md": [material.write_plugin],
}
Pages = Callable[[str], Path]


def with_blocks(path: Path) -> bool:
    return any(block.kind in (*COMMANDS, "python", "yaml") for block in blocks(path))


@pytest.fixture(scope="session")
def ground(tmp_path_factory, data_dir):
    """A folder with all files, from which each page's is copied."""
    folder = tmp_path_factory.mktemp("documentation")
    material.write_package(folder / "packages")
    material.write_encoder(folder / "bert-base-uncased")
    material.write_encoder(folder / "my-encoder")
    material.write_own(folder)
    material.write_known(folder, data_dir)
    return folder


@pytest.fixture
def page(ground, tmp_path, monkeypatch):
    """`page("docs/x.md")`: a new folder with what the page's reader has, which is now the working folder."""
    monkeypatch.syspath_prepend(str(ground / "packages"))
    paths = [str(ground / "packages"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")

    def prepare(name: str) -> Path:
        for entry in ground.iterdir():
            if entry.name not in ("packages", "trained"):
                copy = shutil.copytree if entry.is_dir() else shutil.copy
                copy(entry, tmp_path / entry.name)
        monkeypatch.chdir(tmp_path)
        for write in MORE.get(name, []):
            write(tmp_path)
        if (tmp_path / "site").is_dir():  # a package that the page's reader has installed
            monkeypatch.syspath_prepend(str(tmp_path / "site"))
            monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *paths]))
            forget()
        for run in needed_runs(ROOT / name):
            if not (ground / "trained" / run).exists():
                assert main(material.command_for(run)) == 0
                shutil.copytree(tmp_path / run, ground / "trained" / run)
            else:
                shutil.copytree(ground / "trained" / run, tmp_path / run)
        return tmp_path

    yield prepare
    monkeypatch.undo()
    forget()


def needed_runs(path: Path) -> list[str]:
    """Runs that a page reads before it has made them."""
    made: set[str] = set()
    needed: list[str] = []
    for block in blocks(path):
        texts = block.commands() if block.kind in COMMANDS else [block.text] if block.kind == "python" else []
        for text in texts:
            own = set(re.findall(r"output_dir\"?:? *\"?(runs/[\w/-]+)", text))
            for run in (*material.RUNS, material.DEMO_RUN):
                if material.needed(run, text) and run not in {*made, *own, *needed}:
                    needed.append(run)
            made |= own
    return needed


def run_command(line: str) -> None:
    """Run one documented command in the working folder."""
    if line in NOT_RUN:
        return
    words = [*shlex.split(line), *added(line)]
    if "|" in words:
        run_pipe(words)
        return
    environment = {}
    while re.fullmatch(r"[A-Z_]+=\w*", words[0]):
        name, value = words[0].split("=")
        environment[name] = value
        words = words[1:]
    if words[:2] == ["attentune", "serve"]:
        serve(words[1:], environment)
        return
    assert environment.items() <= os.environ.items(), "the tests' own environment differs"
    if words[0] == "attentune":
        run_verb(words[1:])
    elif words[0] == "torchrun":
        start = [sys.executable, "-m", "torch.distributed.run"]
        subprocess.run([*start, *("2" if word == "4" else word for word in words[1:])], check=True, timeout=300)
    else:
        subprocess.run(["bash", "-ec", line], check=True, timeout=60)


def run_pipe(words: list[str]) -> None:
    """Run commands that are connected by pipes; all have to succeed."""
    program = f"{shlex.quote(sys.executable)} -m attentune.cli.main"
    line = " ".join(
        word if word in ("|", ">") else program if word == "attentune" else shlex.quote(word) for word in words
    )
    subprocess.run(["bash", "-eco", "pipefail", line], check=True, timeout=120)


def run_verb(words: list[str]) -> None:
    """Run `attentune ...`; what it has to say against it is raised."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = main(words)
    print(said.getvalue(), file=sys.stderr)
    assert status == 0, said.getvalue()[-600:]


def serve(words: list[str], environment: dict[str, str]) -> None:
    """The page or API is served at the address that is told, and ends with Ctrl-C."""
    code = (  # whoever starts the tests in the background has Ctrl-C ignored
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from attentune.cli.main import run; run()"
    )
    command, whole = [sys.executable, "-c", code, *words], {**os.environ, **environment}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=whole)
    try:
        found = next(filter(None, (re.search(r"http://([\w.]+:\d+)/", line) for line in process.stderr)))
        address = f"http://{found[1]}/".replace("0.0.0.0", "127.0.0.1")
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.communicate()


def run_python(block: Block, name: str, names: dict[str, Any]) -> None:
    """Run one block of Python in the names that the page's blocks before it have made, or as a script."""
    code = smaller(block.text)
    for (where, start), words in SCRIPTS.items():
        if where == name and block.text.startswith(start):
            Path("convert.py").write_text(code)
            subprocess.run([sys.executable, "convert.py", *words], check=True, timeout=120)
            return
    exec(compile(code, name, "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in TEXTS if with_blocks(path)], ids=name_of)
def test_the_blocks_of_a_page_run(path, page):
    check_blocks(path, page)


def check_blocks(path: Path, page: Pages) -> None:
    """All blocks of a page run, in their order."""
    name = name_of(path)
    folder = page(name)
    names: dict[str, Any] = {"__name__": "documentation"}
    problems: list[str] = []  # all of a page, since one page takes minutes
    for block in blocks(path):
        for (where, start), file in FILES.items():
            if where == name and block.text.startswith(start):
                (folder / file).write_text(block.text, encoding="utf-8")
        if block.kind in COMMANDS:
            for line in block.commands():
                problems += problem(line, run_command, line)
        elif block.kind == "python":
            problems += problem(block.text, run_python, block, name, names)
        elif block.kind == "yaml" and not any(block.text.startswith(start) for _, start in FILES):
            problems += problem(block.text, check_settings, block.text)
    assert not problems, "\n\n".join(problems)


def problem(text: str, run: Callable[..., None], *arguments: Any) -> list[str]:
    """What went wrong in one command or block, if anything did."""
    try:
        run(*arguments)
    except (Exception, SystemExit) as error:
        return [f"{text}\n-> {type(error).__name__}: {error}"]
    return []


def check_settings(text: str) -> None:
    """A block of YAML is settings that a run takes."""
    Path("settings.yaml").write_text(text, encoding="utf-8")
    load_config("settings.yaml")


def test_what_is_not_run_and_what_is_made_smaller_is_still_documented():
    pages = [*TEXTS, *LAB_PAGES]
    commands = {line for path in pages for line in all_commands(path)}
    assert [line for line in NOT_RUN if line not in commands] == []
    code = "".join(block.text for path in pages for block in blocks(path) if block.kind == "python")
    assert [words for words in PYTHON if words not in code] == []
    texts = {name_of(path): [block.text for block in blocks(path)] for path in pages}
    for where, start in (*FILES, *SCRIPTS):
        assert any(text.startswith(start) for text in texts[where]), f"{where}: no block begins with {start!r}"
