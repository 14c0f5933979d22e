"""Makes the screenshots of the documentation: `make screenshots`. Look at them before they are committed."""

from __future__ import annotations

import base64
import os
import sys
import tempfile
from pathlib import Path

from attentune.cli.main import main
from helpers.browser import Page, browser_page

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
# The large comparison, whose records are in the repository.
COMPARISON = "results/matrix"
_WIDTH, _MARGIN = 1180, 12


def shoot(page: Page, file: Path, first: str, last: str) -> None:
    """Write a PNG from the top of one element to the bottom of another, over the page's whole width.

    Args:
        page: the page.
        file: the PNG.
        first: a selector of the element at the top.
        last: a selector of the element at the bottom.
    """
    top = page.run(f"document.querySelector({first!r}).getBoundingClientRect().top + scrollY") - _MARGIN
    bottom = page.run(f"document.querySelector({last!r}).getBoundingClientRect().bottom + scrollY") + _MARGIN
    clip = {"x": 0, "y": max(0, top), "width": _WIDTH, "height": bottom - max(0, top), "scale": 1}
    shot = page.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    file.write_bytes(base64.b64decode(shot["data"]))
    print(f"written to {file}", file=sys.stderr)


def report_pictures(page: Page, folder: Path) -> None:
    """Write the first screen of a report, and its panels."""
    report = folder / "report.html"
    if main(["report", COMPARISON, "--no_texts", "--output_file", str(report)]) != 0:
        raise SystemExit("the report was not written")
    page.resize(_WIDTH, 900)
    page.open(report.as_uri())
    shoot(page, IMAGES / "report.png", "h1", "#at-a-glance")
    shoot(page, IMAGES / "report-panels.png", "#by-task h2", "#by-task .panel:nth-child(4)")


if __name__ == "__main__":
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as name, browser_page(Path(name)) as tab:
        report_pictures(tab, Path(name))
