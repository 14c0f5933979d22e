"""Evaluation suites for saved runs: GLUE's diagnostic set and submissions (`glue`), and HANS (`hans`)."""
