"""Figures of results: plain numbers in, files out."""
