"""The sections of a report: tables and figures, and in which order they come (`contents`)."""
