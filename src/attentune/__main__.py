"""`python -m attentune`: the command line, where the console script is not on the path."""

from attentune.cli.main import run

run()
