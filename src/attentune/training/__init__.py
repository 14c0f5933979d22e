"""The training loop, on Accelerate: optimiser, checkpoints, run folders."""
