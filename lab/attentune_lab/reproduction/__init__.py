"""Reproduction of the papers' tables and figures, each from a YAML recipe in `recipes/`; see `reproduce`."""
