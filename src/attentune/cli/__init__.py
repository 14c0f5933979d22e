"""The command line: one file a command. Results go to standard output, all else to standard error."""
