"""What a wheel has beside the Python files: the C kernels for each level of processors, and the commit.

Called by hatchling. With a C compiler on Linux on x86-64, the wheel is for that platform; elsewhere it is a pure one,
and the kernels are compiled on first use (`attentune.nn.compiled.native`). An editable installation has neither.
"""

import importlib.util
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
NATIVE = ROOT / "src/attentune/nn/compiled/native.py"
# A source archive has the commit that it was made of.
COMMIT = ROOT / "src/attentune/commit.txt"


class Hook(BuildHookInterface):
    """Adds the files from a temporary folder, which lives as long as the build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files, and say for which platform the wheel is."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="attentune-build-")
        folder, include = Path(self._folder.name), build_data["force_include"]
        if not COMMIT.is_file() and (commit := _commit()) is not None:
            (folder / COMMIT.name).write_text(commit, encoding="utf-8")
            prefix = "attentune" if self.target_name == "wheel" else "src/attentune"
            include[str(folder / COMMIT.name)] = f"{prefix}/{COMMIT.name}"
        if self.target_name != "wheel" or sys.platform != "linux" or platform.machine() != "x86_64":
            return
        spec = importlib.util.spec_from_file_location("native", NATIVE)
        assert spec is not None
        assert spec.loader is not None
        native = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(native)
        common = [flag for flag in native.COMPILER_FLAGS if flag != "-march=native"]
        try:
            files = {
                level: native.compile_to(folder / f"kernels-{level}.so", [*common, *flags.split()])
                for level, (flags, _) in native.LEVELS.items()
            }
        except native.NativeError as error:
            self.app.display_warning(f"The wheel has no compiled layers: {error}")
            return
        include |= {str(file): f"attentune/nn/compiled/lib/{file.name}" for file in files.values()}
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-linux_x86_64"


def _commit() -> str | None:
    """Return the commit that is built, with "+" if files differ from it; None outside of a clone."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=9", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
