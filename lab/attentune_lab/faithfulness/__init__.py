"""Research on faithfulness: planted truth, sanity checks, cost, and records for ERASER's program."""
