"""Reproduce the tables and figures of the papers: one YAML recipe each in `recipes/`. Start with `reproduce`."""
