"""For users of the program that the authors of SSA released: its flags, checkpoints and result files."""
