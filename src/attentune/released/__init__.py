"""For users of the program that SSA's authors released: its flags, its checkpoints, its result files."""
