"""Evaluation suites for saved runs: GLUE submissions (`glue`), HANS (`hans`) and changed texts (`robustness`)."""
