"""The wheel and the source archive hold all that is needed: installed alone, without a compiler, they work."""

import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import attentune
from attentune.nn.compiled.native import LEVELS
from helpers.served import asked

ROOT = Path(__file__).resolve().parent.parent
Tiny = Callable[..., Path]
ROWS = "text,label\n" + "".join(f"{'good fine' if n % 2 else 'bad poor'} thing {n},{n % 2}\n" for n in range(40))


def outside() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ATTENTUNE_NATIVE")}


def said(*words: str | Path, cwd: Path, **more: str) -> str:
    env = outside() | more
    done = subprocess.run([*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, made from the source archive, and that archive."""
    folder = tmp_path_factory.mktemp("dist")
    said(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def python(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, which finds the libraries of this one but not the checkout."""
    folder = tmp_path_factory.mktemp("environment")
    said(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    made = folder / "venv" / "bin" / "python"
    said(sys.executable, "-m", "pip", "--python", made, "install", "--no-deps", archives[0], cwd=folder)
    libraries = Path(pytest.__file__).parent.parent
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # A .pth file of a folder that is itself named by one is not read, so the checkout's is not.
    (site / "libraries.pth").write_text(f"{libraries}\n")
    return made


@pytest.mark.slow
def test_the_installed_wheel_trains_and_predicts_outside_of_the_checkout(python, tiny, tmp_path):
    where = said(python, "-c", "import attentune; print(attentune.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(python.parent.parent)
    command = python.parent / "attentune"
    told = said(command, "--version", cwd=tmp_path)
    assert told.startswith(f"{attentune.__version__} (commit ")
    assert "unknown" not in told
    assert "ssa-hybrid" in said(command, "list", "presets", cwd=tmp_path)
    templates = "from attentune.report.writing import html_templates; print(html_templates.list_templates())"
    assert "report.html.jinja" in said(python, "-c", templates, cwd=tmp_path)
    assert "cola" in said(command, "list", "tasks", cwd=tmp_path)
    sentences = "from attentune.demo.domains import read_sentences; print(len(read_sentences('films')))"
    assert said(python, "-c", sentences, cwd=tmp_path).strip() == "1000"
    (tmp_path / "rows.csv").write_text(ROWS)
    flags = ["--model_name_or_path", tiny("bert"), "--num_train_epochs", "1", "--output_dir", "run", "--quiet"]
    flags += ["--precision", "bf16"]
    said(command, "train", "--train_file", "rows.csv", "--preset", "ssa-hybrid", *flags, cwd=tmp_path)
    header, row = said(command, "predict", "run", "--text", "a good thing", cwd=tmp_path).splitlines()
    assert header == "id,prediction,p_0,p_1"
    assert row.split(",")[1] in ("0", "1")
    assert "leave-one-out" in said(
        command, "explain", "run", "--text", "a good thing", "--format", "json", cwd=tmp_path
    )
    said(command, "export", "run", "--format", "transformers", "--output_dir", "exported", cwd=tmp_path)
    assert (tmp_path / "exported/model.safetensors").is_file()
    fit = (
        f"model = AttentuneClassifier(model_name_or_path={str(tiny('bert'))!r}, num_train_epochs=1)",
        "model.fit(['good thing', 'bad thing'] * 20, ['yes', 'no'] * 20)",
        "print(*model.predict(['a good thing']))",
    )
    fitted = "; ".join(("from attentune.integrations.sklearn import AttentuneClassifier", *fit))
    assert said(python, "-c", fitted, cwd=tmp_path).split()[-1] in ("yes", "no")
    with subprocess.Popen(
        [command, "serve", "run", "--port", "0"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=outside()
    ) as server:
        try:
            assert server.stderr is not None
            port = int(re.findall(r"http://127\.0\.0\.1:(\d+)/", server.stderr.readline())[0])
            status, _, answer = asked(port, "POST", "/predict", {"texts": ["a good thing"]})
        finally:
            server.terminate()
    assert (status, json.loads(answer)["predictions"][0]["prediction"] in ("0", "1")) == (200, True)
    assert "Which model is best" in said(command, "demo", "--quick", "--model_name_or_path", tiny("bert"), cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="the wheel is a pure one")
def test_the_wheel_has_the_compiled_layers_and_needs_no_compiler(archives, python: Path, tmp_path: Path) -> None:
    assert archives[0].name.endswith("-py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(archives[0]) as opened:
        kept = {Path(name).name for name in opened.namelist() if name.endswith(".so")}
    assert kept == {f"kernels-{level}.so" for level in LEVELS}
    program = "from attentune.nn.compiled import checks, native; print(native.origin(), checks.unavailable_reason())"
    nothing = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    told = said(python, "-c", program, cwd=tmp_path, **nothing).strip()
    assert (packaged := told.removesuffix(" None")) != told, told
    assert packaged.endswith(" of the wheel") or "no C compiler" in packaged
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_the_source_archive_has_what_its_makefile_and_tests_need(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as opened:
        names = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    for wanted in ("Makefile", "README.md", "CHANGELOG.md", "LICENSE", "CITATION.cff", "requirements/constraints.txt"):
        assert wanted in names
    assert {"tests/helpers/tiny_models.py", "docs/index.md", "src/attentune/config/presets/bert.yaml"} <= names
    assert {f"src/attentune/demo/sentences/{name}" for name in ("NOTICE.md", "imdb_labelled.txt")} <= names
    assert not {name for name in names if name.startswith(("results/", "runs/", ".venv/"))}
