"""The command line, one module per command. Results go to standard output, everything else to standard error."""
