"""One visit to the page over HTTP, from the example to the report; `test_server` and `test_page` have the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from attentune.app.service import PREDICTED, ExplanationService
from helpers.app_server import serving
from helpers.explain_runs import tiny_run

Tiny = Callable[..., Path]


def test_a_visit(tiny: Tiny) -> None:
    service = ExplanationService([("mine", tiny_run(tiny()))])
    with serving(service, build_report=lambda file: file.write_text("<p>the report") and None) as found:
        assert found.ask("GET", "/")[0] == 200
        html, _, about = found.call("explain", service.example.text, "", service.default_method, "word", PREDICTED)
        assert "leave-one-out" in html
        assert "An example. Type your own." in about
        assert "Agreement of leave-one-out and ssa" in html
        (within, start, end), *_ = re.findall(r'data-word="(\w+):(\d+):(\d+)"', html)
        (masked,) = found.mask(service.example.text, None, (within, int(start), int(end)))["predictions"]
        assert 'class="was"' in masked
        (errors,) = found.call("of_file", {"path": found.upload("new.csv", b"text,label\nyes,bad\nyes,good\n"),
                                           "meta": {"_type": "gradio.FileData"}}, "", "", "")  # fmt: skip
        assert "1 of 2 rows of new.csv is wrong" in errors
        assert 'src="/report"' in found.call("show")[0]
        assert found.ask("GET", "/report")[2] == b"<p>the report"
