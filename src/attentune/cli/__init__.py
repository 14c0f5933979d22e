"""The command line, one module per command. Results go to standard output, everything else to standard error.

A command's module has `parser(arguments)`, and `run(arguments)`, which returns the exit status.
"""
