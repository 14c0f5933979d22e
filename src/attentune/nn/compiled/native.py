"""Compilation and loading of the C kernels for the CPU.

A wheel for Linux on x86-64 has a library for each of `LEVELS` (`hatch_build.py` compiles them). Elsewhere, and in a
clone, the kernels are compiled on first use with the machine's C compiler. PyTorch's operations are used instead on
systems other than Linux, without library and compiler, or if PyTorch does not use GNU OpenMP. What is compiled on
first use is cached in $XDG_CACHE_HOME/attentune (default ~/.cache/attentune), one file per version of the sources and
per processor; without a cache that can be written to, each process compiles it. `checks` compares the library with
PyTorch. $CC selects a compiler other than `cc`, `gcc` or `clang`; $ATTENTUNE_CFLAGS adds options, such as
-march=x86-64-v3 for an older processor than this one; with either of them the wheel's libraries are not used.
ATTENTUNE_NATIVE=0 disables the kernels, ATTENTUNE_NATIVE=1 uses them without measuring whether they are faster
(`checks.is_fast`). The build of a wheel loads this file alone, so it imports nothing of the package.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

SOURCES = Path(__file__).with_name("c")
LIBRARIES = Path(__file__).with_name("lib")
# Without -ffast-math, which would break the detection of NaN losses.
COMPILER_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
# The processors for which a wheel has a library, best first: the compiler's options, and what /proc/cpuinfo has to name
# (gcc's x86-64-v3 and -v4, the x86-64 psABI's levels, and extensions).
_V3 = "avx2 fma bmi1 bmi2 f16c movbe abm"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
LEVELS = {
    "amx": ("-march=x86-64-v4 -mavx512bf16 -mamx-tile -mamx-bf16", f"{_V4} avx512_bf16 amx_tile amx_bf16"),
    "avx512-bf16": ("-march=x86-64-v4 -mavx512bf16", f"{_V4} avx512_bf16"),
    "avx512": ("-march=x86-64-v4", _V4),
    "avx2": ("-march=x86-64-v3", _V3),
}
_COMPILER_TIMEOUT_S = 120


class NativeError(Exception):
    """The C kernels are not available on this machine; the message says why."""


def sources() -> list[str]:
    return sorted(str(file) for file in SOURCES.glob("*.c"))


def load_library() -> ctypes.CDLL:
    library = attempt_load()
    if isinstance(library, NativeError):
        raise library
    return library


def unavailable_reason() -> str | None:
    library = attempt_load()
    return str(library) if isinstance(library, NativeError) else None


@functools.cache
def attempt_load() -> ctypes.CDLL | NativeError:
    """Return the library or the error. Cached, so that a failing compiler is run once and not in each step."""
    try:
        return _loaded()
    except NativeError as error:
        return error


def _check_allowed() -> None:
    if os.environ.get("ATTENTUNE_NATIVE") == "0":
        raise NativeError("ATTENTUNE_NATIVE is 0")
    if not sys.platform.startswith("linux"):
        raise NativeError(f"it was written for Linux, and this is {sys.platform}")


def _loaded() -> ctypes.CDLL:
    _check_allowed()
    openmp = _openmp()
    file = packaged_library()
    library = _cached_or_compiled() if file is None else _load(file)
    wanted = (openmp.GOMP_parallel, openmp.omp_get_thread_num, openmp.omp_get_num_threads)
    library.attentune_threads.argtypes = [ctypes.c_void_p] * len(wanted)
    library.attentune_threads(*(ctypes.cast(function, ctypes.c_void_p) for function in wanted))
    library.attentune_amx(1)
    return library


def _openmp() -> ctypes.CDLL:
    """Return the OpenMP library that PyTorch has loaded, without loading another one."""
    import torch  # noqa: F401  loads it

    try:
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
    except OSError as error:
        raise NativeError("this PyTorch does not use GNU OpenMP (libgomp.so.1)") from error


def packaged_library() -> Path | None:
    """Return the wheel's library for this processor; None if there is none, or the environment asks for another."""
    if os.environ.get("CC") or os.environ.get("ATTENTUNE_CFLAGS") or not LIBRARIES.is_dir():
        return None
    has = {name for line in processor_name().splitlines() if line.startswith("flags") for name in line.split()}
    levels = (level for level, (_, needed) in LEVELS.items() if has.issuperset(needed.split()))
    files = (LIBRARIES / f"kernels-{level}.so" for level in levels)
    return next((file for file in files if file.is_file()), None)


def origin() -> str:
    """Say where the library comes from, without loading it."""
    try:
        _check_allowed()
        file = packaged_library()
        return (
            f"compiled at first use by {shlex.join(find_compiler())}" if file is None else f"{file.stem} of the wheel"
        )
    except NativeError as error:
        return f"none ({error})"


def _cached_or_compiled() -> ctypes.CDLL:
    """Load the library from the cache; compile it, and put it there if that is possible."""
    cache = cache_folder()
    name = f"kernels-{library_key()}"
    for file in cache.glob(f"{name}-*.so"):
        _refuse_foreign(cache, file)
        if file.stem == f"{name}-{_digest(file)}":
            return _load(file)
    try:
        with tempfile.TemporaryDirectory(prefix="attentune-", ignore_cleanup_errors=True) as folder:
            compiled = compile_to(Path(folder) / f"{name}.so", _flags())
            copy = functools.partial(shutil.copyfile, compiled)
            kept = keep_file(cache / f"{name}-{_digest(compiled)}.so", copy)
            return _load(kept or compiled)  # a loaded file may be deleted
    except OSError as error:
        raise NativeError(f"no temporary folder to compile in: {error}") from error


def _refuse_foreign(*paths: Path) -> None:
    """Refuse what another user could have written: to load a library is to run it."""
    for path in paths:
        facts = path.stat()
        if facts.st_uid not in (0, os.getuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise NativeError(f"{path} could have been written by another user: remove it, or chmod go-w it")


def cache_folder() -> Path:
    """Return the cache folder of the compiled library and its speed check."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attentune"


def library_key() -> str:
    """Hash what the library depends on: the sources, the wheel's library or the flags, and the processor."""
    texts = [file.read_text() for file in sorted(SOURCES.iterdir())]
    file = packaged_library()
    made = _flags() if file is None else [file.name]
    return hashlib.sha256("\0".join((*texts, *made, processor_name())).encode()).hexdigest()[:16]


def _flags() -> list[str]:
    """Return the compiler's options; those of $ATTENTUNE_CFLAGS come last, which counts where two contradict."""
    return [*COMPILER_FLAGS, *shlex.split(os.environ.get("ATTENTUNE_CFLAGS", ""))]


def _digest(file: Path) -> str | None:
    """Hash a library; its name in the cache has the hash, since loading a truncated file would kill the process."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def keep_file(target: Path, write: Callable[[Path], object]) -> Path | None:
    """Put what `write` writes into the cache folder, whole or not at all; return None if that is not possible."""
    temporary = target.with_name(f".writing-{os.getpid()}-{target.name}")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(temporary)
        temporary.chmod(0o600)
        temporary.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        return None
    return target


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"{path} cannot be loaded: {error}") from error


def compile_to(target: Path, flags: Sequence[str]) -> Path:
    """Compile the library with these options of the compiler."""
    compiler = find_compiler()
    try:
        done = subprocess.run(
            [*compiler, *flags, "-o", str(target), *sources(), "-lm"],
            capture_output=True,
            text=True,
            timeout=_COMPILER_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeError(f"the compiler {shlex.join(compiler)} did not run: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise NativeError(f"the compiler {shlex.join(compiler)} failed: {last}")
    return target


def find_compiler() -> list[str]:
    """Return the compiler's command: that of the environment variable CC, else the first of cc, gcc and clang."""
    from_environment = shlex.split(os.environ.get("CC", ""))
    for command in (from_environment,) if from_environment else (["cc"], ["gcc"], ["clang"]):
        if shutil.which(command[0]):
            return command
    raise NativeError(f"no C compiler found ({' '.join(from_environment) or 'cc, gcc, clang'})")


def processor_name() -> str:
    """Describe the processor, on which -march=native depends: different machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    facts = {line for line in lines if line.startswith(("model", "flags", "cpu family", "Features", "CPU"))}
    return "\n".join(sorted(facts))
