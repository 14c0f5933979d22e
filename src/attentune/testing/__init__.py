"""Checks for parts that other packages add to Attentune, and tiny encoders to run them on.

One test covers all parts of a package:

    from attentune.testing import check_package

    def test_contracts(tmp_path):
        check_package("my-package", tmp_path)
"""

from __future__ import annotations

from attentune.testing.contracts import check_package, check_part
from attentune.testing.tiny import FAMILIES, build_tiny

__all__ = ["FAMILIES", "build_tiny", "check_package", "check_part"]
