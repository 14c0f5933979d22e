"""Asks axe-core what is wrong with a page for people who see little, or use a keyboard or a screen reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers.browser import Page

_ROOT = Path(__file__).parents[2]
AXE = _ROOT / "node_modules" / "axe-core" / "axe.min.js"


def problems(page: Page, *, ignored: Sequence[str] = (), frames: bool = True) -> list[str]:
    """Return what axe-core finds that is serious or critical; fail the test if it is not installed."""
    if not AXE.is_file():
        pytest.fail(f"no {AXE}: run `npm install --no-save --no-package-lock axe-core@4` in {_ROOT}")
    page.run(f"{AXE.read_text(encoding='utf-8')}; 0")
    options = json.dumps({"iframes": frames, "rules": {rule: {"enabled": False} for rule in ignored}})
    found = json.loads(page.run(f"axe.run(document, {options}).then(found => JSON.stringify(found.violations))"))
    return [
        f"{one['id']}: {node['html'][:150]} {node['failureSummary'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
