"""Files on disk.

`files` has atomic writes, manifests and reading with a size limit; `locks` has file locks that the operating system
frees when their process ends.
"""
