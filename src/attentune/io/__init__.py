"""Files on disk.

`files` provides atomic writes, manifests and size-limited reading; `locks` provides file locks that the operating
system releases when their process ends.
"""
