"""Fixtures shared by all tests: tiny offline encoders and the folder of real datasets."""

import gc
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

# Set before torch, transformers and tokenizers are imported, because they read these on import. Tests and the programs
# that they start use one thread, because the last digits of a run's results depend on the number of threads; and the
# compiled layers wherever they work, without measuring on a busy machine whether they are faster.
os.environ.setdefault("ATTENTUNE_NATIVE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parent.parent
# These need fork, SIGKILL, pseudo-terminals or resource limits, which Windows does not have.
_POSIX_ONLY = [
    "cli/test_explain.py",
    "cli/test_predict.py",
    "cli/test_serve.py",
    "cli/test_shards.py",
    "cli/test_storage.py",
    "data/test_bad_files.py",
    "execution/test_*kills.py",
    "hostile/*",
    "training/test_kills.py",
    "training/test_processes.py",
    "training/test_refusals.py",
    "training/test_run_folder.py",
]
collect_ignore_glob = _POSIX_ONLY if os.name == "nt" else []


# Hypothesis tries some examples by default, the same on each run, and many new ones in `make test-all`
# (--hypothesis-profile=all); no test has its own number.
_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("some", max_examples=40, derandomize=True, deadline=None, suppress_health_check=_CHECKS)
settings.register_profile("all", max_examples=1000, deadline=None, suppress_health_check=_CHECKS)
settings.load_profile("some")


def pytest_configure(config: pytest.Config) -> None:
    """Limit each pytest-xdist worker to one thread, so that workers do not compete for cores; enable SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # shells ignore it in programs started in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" in os.environ:
        import torch

        torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Keep the garbage collector from searching, at each run of a test, what is imported and collected and stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests of real data as slow; deselect tests of the C code if it cannot be compiled."""
    for item in items:
        if "data_dir" in getattr(item, "fixturenames", ()):
            item.add_marker("real_data")
            item.add_marker("slow")
    native = [item for item in items if item.get_closest_marker("native")]
    reason = _no_native_code() if native else None
    if reason is not None:
        items[:] = [item for item in items if not item.get_closest_marker("native")]
        config.hook.pytest_deselected(items=native)
        _LEFT_OUT.append(f"{len(native)} tests of the C code deselected: {reason}")


_LEFT_OUT: list[str] = []


def _no_native_code() -> str | None:
    from attentune.nn.compiled.native import unavailable_reason

    return unavailable_reason()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the deselected tests to pytest-xdist's controller; all workers collect the same tests."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = _LEFT_OUT


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Store the deselected tests that a worker has sent."""
    _LEFT_OUT[:] = getattr(node, "workeroutput", {}).get("left_out", _LEFT_OUT)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report tests that this machine cannot run."""
    for line in _LEFT_OUT:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder with `glue_data`, `hans`, `sick` and `cs224n`; fail the test if there is none."""
    folder = Path(os.environ.get("ATTENTUNE_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.fail(
            f"no data sets at {folder}: unpack them into a folder that holds glue_data/, hans/, sick/ and cs224n/ "
            'and set ATTENTUNE_DATA to its path, or deselect these tests with -m "not real_data"',
            pytrace=False,
        )
    return folder


class CommandLine:
    """Runs command lines, as in `attentune("train", "--seed", 1)`: returns exit status, standard output and error."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *words: object) -> tuple[int, str, str]:
        from attentune.cli.main import main

        self._capfd.readouterr()
        status = main([str(word) for word in words])
        captured = self._capfd.readouterr()
        return status, captured.out, captured.err

    def done(self, *words: object) -> tuple[str, str]:
        """Run a command line that must succeed; return standard output and error."""
        status, out, err = self(*words)
        assert status == 0, err
        return out, err

    def refused(self, *words: object) -> str:
        """Run a command line that must be refused with status 2 and nothing on standard output; return the message."""
        status, out, err = self(*words)
        assert (status, out) == (2, ""), err
        return err


@pytest.fixture
def attentune(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function `tiny(family="bert", **options)` that returns the folder of a tiny checkpoint.

    Each checkpoint is built once per session (and xdist worker).
    """
    from helpers.tiny import build_tiny

    built: dict[tuple[object, ...], Path] = {}

    def build(family: str = "bert", **options: object) -> Path:
        key = (family, *sorted(options.items()))
        if key not in built:
            built[key] = build_tiny(family, tmp_path_factory.mktemp(f"tiny-{family}"), **options)
        return built[key]

    return build
