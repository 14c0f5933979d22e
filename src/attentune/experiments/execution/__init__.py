"""Executes tasks: the interface of the executors, three of them (local, Ray, SLURM), and the driver of a command's runs.

Start reading at `executor`, then `local` and `driver`.
"""
