"""The papers' tables and figures: one YAML recipe each in `recipes/`, and the command that runs them (`reproduce`)."""
