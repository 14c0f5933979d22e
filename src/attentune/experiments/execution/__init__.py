"""Executes tasks: three executors (local, Ray, SLURM) behind one interface, and the driver of a command's runs.

Start reading at `executor`, then `local` and `driver`.
"""
