"""Files on disk.

`files` has atomic writes, manifests and bounded reading, `locks` has locks that end with their process.
"""
