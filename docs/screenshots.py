"""Makes the screenshots of the documentation: `make screenshots`. Look at them before they are committed.

`PYTHONPATH=tests python docs/screenshots.py notebook`, `report` or `serve` makes those of one page.
"""

from __future__ import annotations

import base64
import contextlib
import html
import os
import sys
import tempfile
from pathlib import Path

import attentune
from attentune.cli.main import main
from attentune.demo.domains import write_files
from attentune.inference.predictor import Predictor
from helpers.browser import Page, browser_page
from helpers.served import serving

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
# The run of the page of `attentune serve`, trained on 400 sentences of the demo, and a text of the same kind.
PRESET = "ssa-hybrid"
TEXT, MASKED = "The staff was friendly, but we waited an hour for cold food.", "waited"
_WIDTH, _MARGIN = 1180, 12


def shoot(page: Page, file: Path, first: str, last: str) -> None:
    """Write a PNG from the top of one element to the bottom of another, over the page's whole width."""
    top = page.run(f"document.querySelector({first!r}).getBoundingClientRect().top + scrollY") - _MARGIN
    bottom = page.run(f"document.querySelector({last!r}).getBoundingClientRect().bottom + scrollY") + _MARGIN
    clip = {"x": 0, "y": max(0, top), "width": _WIDTH, "height": bottom - max(0, top), "scale": 1}
    shot = page.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    file.write_bytes(base64.b64decode(shot["data"]))
    print(f"written to {file}", file=sys.stderr)


def report_pictures(page: Page, folder: Path) -> None:
    """Write the first screen of a report on the demo's sentences, of three models with three seeds."""
    files = write_files(folder / "data", train_size=400, seed=42)
    data = ["--train_file", str(files["train"]), "--validation_file", str(files["held_out"]), "--use_cpu", "--quiet"]
    methods = ["--presets", "bert-mean,ssa-hybrid,tfidf-linear", "--seeds", "3", "--num_train_epochs", "2"]
    report = folder / "report.html"
    if main(["compare", *methods, *data, "--output_dir", str(folder / "compared")]) != 0:
        raise SystemExit("the models were not compared")
    if main(["report", str(folder / "compared"), "--output_file", str(report)]) != 0:
        raise SystemExit("the report was not written")
    page.resize(_WIDTH, 900)
    page.open(report.as_uri())
    shoot(page, IMAGES / "report.png", "h1", "#result")


def serve_pictures(page: Page, folder: Path) -> None:
    """Write the page of `attentune serve` with a masked word, and the rows that the run gets wrong."""
    files = write_files(folder / "data", train_size=400, seed=42)
    data = ["--train_file", str(files["train"]), "--validation_file", str(files["held_out"]), "--quiet", "--use_cpu"]
    options = ["--preset", PRESET, "--num_train_epochs", "2", "--output_dir", str(folder / PRESET)]
    if main(["train", *data, *options]) != 0:
        raise SystemExit(f"{PRESET} was not trained")
    page.resize(_WIDTH, 900)
    with serving(Predictor.load(folder / PRESET), name="reviews") as found:
        page.open(found.url, "document.querySelector('#why [data-word]')")
        page.fill("#text", TEXT)
        page.click("#ask button")
        start = TEXT.index(MASKED)
        word = f"#why [data-word='text:{start}:{start + len(MASKED)}']"
        page.wait(f'document.querySelector(".marked").innerText === {TEXT!r} && document.querySelector("{word}")')
        page.click(word)
        page.wait("document.querySelector('.was')")
        page.click("#errors summary")
        page.wait("document.querySelector('#errors-table table')")
        shoot(page, IMAGES / "serve.png", "h1", "#errors tbody tr:nth-child(5)")


_NOTEBOOK = """<meta charset="utf-8"><style>
body { font: 14px/1.5 system-ui, sans-serif; margin: 12px 24px; }
pre { background: #f5f5f5; border: 1px solid #e0e0e0; padding: .5rem .7rem; margin: .6rem 0; }
p { margin: .4rem 0; }
table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; padding: .15rem .9rem .15rem 0; }
tr:nth-child(even) { background: #f5f5f5; }
</style>"""


def notebook_pictures(page: Page, folder: Path) -> None:
    """Write what a notebook shows of a leaderboard of `auto`, and of the explanation of a prediction."""
    file = write_files(folder / "data", train_size=400, seed=42)["train"].rename(folder / "reviews.csv")
    config = attentune.load_config(overrides={"data.train_file": file.name, "training.output_dir": "runs/best"})
    with contextlib.chdir(folder):
        best = attentune.auto(config, time_limit_s=180, jobs=1)
        (why,) = attentune.explain_texts(best.folder, [TEXT])
    cells = {
        "best = attentune.auto(attentune.load_config(overrides=settings), time_limit_s=180)\nbest": best,
        f'attentune.explain_texts("runs/best", ["{TEXT}"])[0]': why,
    }
    shown = "".join(f"<pre>{html.escape(code)}</pre>{value._repr_html_()}" for code, value in cells.items())
    (folder / "notebook.html").write_text(f"{_NOTEBOOK}<main>{shown}</main>", encoding="utf-8")
    page.resize(_WIDTH, 900)
    page.open((folder / "notebook.html").as_uri())
    shoot(page, IMAGES / "notebook.png", "main", "main")


PICTURES = {"notebook": notebook_pictures, "report": report_pictures, "serve": serve_pictures}

if __name__ == "__main__":
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, browser_page(Path(name)) as tab:
        for page_name in sys.argv[1:] or PICTURES:
            PICTURES[page_name](tab, Path(name))
