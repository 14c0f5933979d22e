"""Presets of the lab, as entry point of the group `attentune.presets`."""
