"""Checks for parts that other packages add to Attentune, on tiny encoders that are built without a network.

One test covers all parts of a package:

    from attentune.plugin_checks import check_package

    def test_contracts(tmp_path):
        check_package("my-package", tmp_path)
"""

from attentune.plugin_checks.checks import build_tiny, check_package, check_part

__all__ = ["build_tiny", "check_package", "check_part"]
