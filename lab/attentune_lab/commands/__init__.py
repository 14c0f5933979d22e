"""The commands of the lab, one module each, as `attentune.cli` has them; pyproject.toml names them."""
