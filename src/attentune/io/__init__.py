"""Files on disk: `files` has atomic writes, manifests, size-limited reading and locks, `urls` object stores."""
