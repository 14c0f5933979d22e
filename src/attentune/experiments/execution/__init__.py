"""Where the runs of a comparison or search execute: a queue, worker processes and their scheduler."""
