"""The sections of a report. `contents` lists them in order; the other modules make their tables and figures."""
