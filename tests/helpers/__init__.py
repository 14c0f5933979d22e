"""Shared by the tests: tiny models, sample files, reference implementations, and programs to start and kill."""
