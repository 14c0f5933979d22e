"""The contract of every part that another package adds to Attentune."""

from attentune.plugin_checks import check_package


def test_contracts(tmp_path):
    assert check_package("attentune-layer-attention", tmp_path) == ["attentune-layer-attention/layer-attention"]
