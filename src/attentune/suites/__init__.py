"""Evaluation suites for saved runs: GLUE submissions (`glue`), HANS (`hans`) and perturbed inputs (`robustness`)."""
