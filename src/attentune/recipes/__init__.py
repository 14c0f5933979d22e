"""The papers' tables and figures: one YAML file each, and what runs them and sets ours beside theirs."""
