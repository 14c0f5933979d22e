"""Saved runs in forms that serve without PyTorch."""
