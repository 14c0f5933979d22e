"""Hyper-parameter search: `attentune search`. Start with `search.search`; the built-in spaces are in `spaces/`."""
