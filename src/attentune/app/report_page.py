"""The report of the runs, as `attentune report` writes it: made when it is first asked for, and kept in a folder."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from attentune.app.html import BUG, inert, message
from attentune.errors import AttentuneError

ADDRESS = "/report"


class ReportPage:
    """A report that is built at most once."""

    def __init__(self, file: Path, build: Callable[[Path], None]) -> None:
        self.file, self._build = file, build
        self._lock = threading.Lock()
        self._problem = ""

    def html(self) -> str:
        """Build the report if it is not there yet; return a frame that shows it, or a message.

        The frame is sandboxed: the report's script sorts its tables, but reaches neither this page nor its server.
        """
        with self._lock:
            if not self.file.is_file() and not self._problem:
                try:
                    self._build(self.file)
                except AttentuneError as error:
                    self._problem = f"There is no report: {error}"
                except Exception:
                    traceback.print_exc(file=sys.stderr)
                    self._problem = BUG
        if self._problem:
            return message(self._problem)
        frame = f'<iframe class="att-report" src="{ADDRESS}" sandbox="allow-scripts" title="Report"></iframe>'
        return inert(f'<div class="att">{frame}</div>')
