"""Figures, drawn with Matplotlib."""
