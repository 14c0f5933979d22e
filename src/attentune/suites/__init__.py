"""Evaluation suites for a saved run: GLUE submissions, HANS, robustness to changed texts."""
