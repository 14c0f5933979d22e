"""Figures, drawn with Matplotlib (extra `explain`), which is imported only when a figure is drawn."""
