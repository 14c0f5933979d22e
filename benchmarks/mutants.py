"""Mutation testing with mutmut: how many small faults in a package its own tests detect.

    python -m benchmarks.mutants stats --sample 250

It copies the project into `build/mutants/stats`, lets mutmut change one operator, name or number at a time in
`src/attentune/stats/` (of `nn/` without the C layers), and runs the fast tests of `tests/stats/` that reach it.
A mutant that no test fails on has survived; `results/mutants.jsonl` lists each with its change. `--sample` tries only
those whose names have the lowest hashes: a random sample that another version of the code draws again, as far as
it has the same mutants. `--again` runs only the survivors of the record, after new tests.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from attentune.results import versions
from benchmarks.common import RESULTS, ROOT, command_of, data_dir

TARGET = RESULTS / "mutants.jsonl"
SETTINGS = """
[tool.mutmut]
source_paths = ["src/"]
only_mutate = ["src/attentune/{package}/*"]
do_not_mutate = ["*/nn/compiled/*"]
pytest_add_cli_args_test_selection = ["tests/{package}"]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-m", "not slow and not integration", "--ignore=tests/nn/compiled"]
process_isolation = "forkserver"
also_copy = ["lab", "docs", "examples", "results", "Makefile", "README.md"]
"""
# mutmut's words for a mutant that its tests fail on; one that runs on for ever is noticed too.
NOTICED = ("killed", "timeout", "segfault")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "package", help="a package of attentune with tests of the same name: stats, token_labels, nn, ..."
    )
    parser.add_argument("--sample", type=int, help="how many mutants to try (default: all)")
    parser.add_argument("--max_children", type=int, default=2, help="tests that run side by side")
    parser.add_argument("--again", action="store_true", help="try those again that survived an earlier call")
    given = parser.parse_args()
    for needed in (ROOT / "src" / "attentune" / given.package, ROOT / "tests" / given.package):
        if not needed.is_dir():
            parser.error(f"there is no folder {needed}; expected a package with tests of its own name")
    folder = ROOT / "build" / "mutants" / given.package
    if given.sample:
        shutil.rmtree(folder, ignore_errors=True)
    copy_project(folder, given.package)
    records = earlier_records()
    names: list[str] = []
    if given.again:
        if given.package not in records:
            parser.error(f"--again needs the record of an earlier call in {TARGET}; there is none of {given.package}")
        names = list(records[given.package]["survived"])
    elif given.sample:
        names = sample(folder, given.sample)
    started = time.perf_counter()
    mutmut(folder, "run", *names, "--max-children", str(given.max_children))
    records[given.package] = record = {
        "record": given.package,
        "command": command_of("benchmarks.mutants", sys.argv[1:]),
        "seconds": round(time.perf_counter() - started),
        **outcome(folder),
        "versions": versions(),
    }
    TARGET.write_text("".join(json.dumps(records[name]) + "\n" for name in sorted(records)), encoding="utf-8")
    print(f"{record['noticed']} of {record['tried']} mutants noticed; those that survived are in {TARGET}")


def earlier_records() -> dict[str, dict[str, Any]]:
    """Return the records of earlier calls by package."""
    lines = TARGET.read_text(encoding="utf-8").splitlines() if TARGET.is_file() else []
    return {record["record"]: record for record in map(json.loads, lines)}


def copy_project(folder: Path, package: str) -> None:
    """The files git knows or would take, and mutmut's settings behind those of `pyproject.toml`."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as settings:
        settings.write(SETTINGS.format(package=package))


def sample(folder: Path, size: int) -> list[str]:
    """Return a random sample of the mutants, keyed by their names, with those that no test reaches."""
    mutmut(folder, "run", "none of these", check=False)  # writes the mutants and finds the tests of each, then ends
    lines = mutmut(folder, "results", "--all", "true", capture=True).splitlines()
    names = [line.strip().rpartition(": ")[0] for line in lines]
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:size]


def mutmut(folder: Path, *arguments: str, capture: bool = False, check: bool = True) -> str:
    environment = {
        **os.environ,
        "ATTENTUNE_DATA": str(data_dir()),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(folder / "lab"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )
    if check and done.returncode:
        sys.exit(f"mutmut {' '.join(arguments)} ended with status {done.returncode}; its files are in {folder}")
    return done.stdout or ""


def outcome(folder: Path) -> dict[str, Any]:
    """Mutants tried and noticed, in all and by module, and what was changed in each that survived."""
    by_module: dict[str, Counter[str]] = defaultdict(Counter)
    survived = {}
    for line in mutmut(folder, "results", "--all", "true", capture=True).splitlines():
        name, _, status = line.strip().rpartition(": ")
        if status in ("", "not checked", "skipped"):
            continue
        module = name.split(".x")[0].removeprefix("attentune.")
        by_module[module]["tried"] += 1
        by_module[module]["noticed"] += status in NOTICED
        if status not in NOTICED:
            survived[name] = {"status": status, "change": changed_lines(folder, name)}
    return {
        "tried": sum(one["tried"] for one in by_module.values()),
        "noticed": sum(one["noticed"] for one in by_module.values()),
        "modules": {name: dict(by_module[name]) for name in sorted(by_module)},
        "survived": survived,
    }


def changed_lines(folder: Path, name: str) -> list[str]:
    shown = mutmut(folder, "show", name, capture=True).splitlines()
    return [line for line in shown if line.startswith(("-", "+")) and not line.startswith(("---", "+++"))]


if __name__ == "__main__":
    main()
