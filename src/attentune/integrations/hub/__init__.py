"""Runs as folders that transformers loads where Attentune is not installed. Start with `export`."""
