"""The C code is compiled once for a processor, and where it cannot be the reason is told."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from attentune.nn.compiled import checks, native
from attentune.nn.compiled.native import NativeError, unavailable_reason
from helpers.interrupted import Disk
from helpers.native import needs_native


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and nothing known of before; compiled in a fifth of the time, without optimisation."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ATTENTUNE_CFLAGS", "-O0")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("ATTENTUNE_NATIVE", raising=False)
    native.attempt_load.cache_clear()
    yield tmp_path / "cache" / "attentune"
    native.attempt_load.cache_clear()


def compiler(folder: Path, script: str) -> str:
    path = folder / "a compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"'{path}'"


@pytest.mark.integration
@needs_native
def test_it_is_compiled_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unavailable_reason() is None
    (library,) = cache.iterdir()
    before = library.stat().st_mtime_ns
    monkeypatch.setenv("CC", compiler(tmp_path, "exit 1"))
    native.attempt_load.cache_clear()
    assert unavailable_reason() is None
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [before]


@pytest.mark.integration
@needs_native
def test_options_of_the_environment_come_last_and_have_a_library_of_their_own(cache, monkeypatch):
    native.load_library()
    monkeypatch.setenv("ATTENTUNE_CFLAGS", "-O1 -no-such-option")
    native.attempt_load.cache_clear()
    assert "-no-such-option" in str(unavailable_reason())
    monkeypatch.setenv("ATTENTUNE_CFLAGS", "-O1")
    native.attempt_load.cache_clear()
    assert unavailable_reason() is None
    assert len(list(cache.iterdir())) == 2


@pytest.mark.integration
@needs_native
@pytest.mark.skipif(os.geteuid() != 0 and not os.access("/proc", os.R_OK), reason="needs /proc, which nobody writes to")
def test_a_home_that_cannot_be_written_to_costs_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert unavailable_reason() is None


def load_in_another_process(cache: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a process that loads the library and prints why it is not available."""
    program = "from attentune.nn.compiled.native import unavailable_reason; print(unavailable_reason())"
    settings = {"XDG_CACHE_HOME": str(cache.parent), "PYTHONWARNINGS": "ignore", **environment}
    return subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | settings, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.integration
@needs_native
def test_a_truncated_library_is_compiled_again(cache: Path) -> None:
    assert load_in_another_process(cache).communicate()[0] == "None\n"
    (library,) = cache.iterdir()
    whole = library.read_bytes()
    library.write_bytes(whole[: len(whole) // 2])
    second = load_in_another_process(cache)
    assert (second.communicate()[0], second.returncode) == ("None\n", 0)
    assert [file.read_bytes() for file in cache.iterdir()] == [whole]


@pytest.mark.integration
@needs_native
def test_processes_that_compile_at_once(cache: Path) -> None:
    processes = [load_in_another_process(cache) for _ in range(3)]
    assert [one.communicate()[0] for one in processes] == ["None\n"] * 3
    assert len(list(cache.iterdir())) == 1


@pytest.mark.integration
@needs_native
def test_a_full_disk_costs_a_compilation(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk", size=64)
    try:
        disk.fill()
        cache = disk.folder / "attentune"
        assert load_in_another_process(cache).communicate()[0] == "None\n"
        assert not cache.exists() or list(cache.iterdir()) == []
        # Without room for temporary files either, PyTorch's operations are used.
        reason = load_in_another_process(cache, TMPDIR=str(disk.folder)).communicate()[0]
        assert "failed: " in reason or "no temporary folder" in reason
    finally:
        disk.remove()


FAILS = "echo 'norm.c:3: it is all wrong' >&2; exit 1"
NO_LIBRARY = 'while [ "$1" != -o ]; do shift; done; echo text > "$2"'


@pytest.mark.parametrize(
    ("environment", "script", "reason"),
    [
        ({"PATH": ""}, None, "no C compiler found (cc, gcc, clang)"),
        ({"CC": "nonesuch -m64"}, None, "no C compiler found (nonesuch -m64)"),
        ({}, FAILS, "failed: norm.c:3: it is all wrong"),
        ({}, NO_LIBRARY, "cannot be loaded"),
        ({"ATTENTUNE_NATIVE": "0"}, None, "ATTENTUNE_NATIVE is 0"),
        ({"platform": "win32"}, None, "it was written for Linux, and this is win32"),
    ],
    ids=["no compiler", "another compiler", "a failing compiler", "no library", "forbidden", "another system"],
)
def test_why_it_is_not_available(cache, monkeypatch, tmp_path, environment, script, reason) -> None:
    """A compiler is asked once, and what fails leaves nothing."""
    if script is not None:
        environment = {"CC": compiler(tmp_path, f"echo asked >> '{tmp_path}/asked'; {script}")}
    for name, value in environment.items():
        if name == "platform":
            monkeypatch.setattr(sys, name, value)
        else:
            monkeypatch.setenv(name, value)
    for _ in range(2):
        told = unavailable_reason()
        assert told is not None
        assert reason in told
    with pytest.raises(NativeError):
        native.load_library()
    assert script is None or (tmp_path / "asked").read_text() == "asked\n"
    assert script != FAILS or not cache.exists()


@pytest.mark.integration
@needs_native
@pytest.mark.parametrize("level", [None, *native.LEVELS])
def test_the_compiler_has_nothing_to_say_of_it(tmp_path: Path, level: str | None) -> None:
    flags = "-march=native" if level is None else native.LEVELS[level][0]
    command = [*native.find_compiler(), *native.COMPILER_FLAGS, *flags.split(), "-Wall", "-Wextra", "-Wno-psabi"]
    done = subprocess.run(
        [*command, "-Werror", "-o", str(tmp_path / "k.so"), *native.sources(), "-lm"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the wheel's libraries, empty."""
    folder = tmp_path / "lib"
    folder.mkdir()
    monkeypatch.delenv("ATTENTUNE_CFLAGS", raising=False)
    monkeypatch.setattr(native, "LIBRARIES", folder)
    return folder


@pytest.mark.integration
@needs_native
@pytest.mark.parametrize("level", native.LEVELS)
def test_the_library_of_the_wheel_is_right_and_needs_no_compiler(
    libraries: Path, cache: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = libraries / f"kernels-{level}.so"
    file.touch()
    if native.packaged_library() is None:
        pytest.skip("this processor is of a lower level")
    native.compile_to(file, [*native.COMPILER_FLAGS, *native.LEVELS[level][0].split()])
    monkeypatch.setenv("PATH", "")
    assert native.origin() == f"kernels-{level} of the wheel"
    assert checks.unavailable_reason() is None  # the self-check compares with PyTorch
    assert not cache.exists()


@pytest.mark.parametrize("level", [None, *native.LEVELS])
def test_the_best_library_that_the_processor_can_run(
    libraries: Path, monkeypatch: pytest.MonkeyPatch, level: str | None
) -> None:
    for name in native.LEVELS:
        (libraries / f"kernels-{name}.so").touch()
    has = "avx2 fma" if level is None else native.LEVELS[level][1]
    monkeypatch.setattr(native, "processor_name", lambda: f"flags\t\t: fpu {has}")
    assert native.packaged_library() == (None if level is None else libraries / f"kernels-{level}.so")
    monkeypatch.setenv("ATTENTUNE_CFLAGS", "-O1")
    assert native.packaged_library() is None


@pytest.mark.integration
@needs_native
@pytest.mark.parametrize("which", ["folder", "file"])
def test_a_library_that_another_user_could_have_written_is_refused(cache: Path, which: str) -> None:
    native.load_library()
    path = cache if which == "folder" else next(cache.iterdir())
    path.chmod(path.stat().st_mode | stat.S_IWOTH)
    native.attempt_load.cache_clear()
    assert f"{path} could have been written by another user" in str(unavailable_reason())
