"""The command line: one file a verb. Results go to standard output, all else to standard error."""
