"""Fixtures of the core's tests."""

from conftest import *  # noqa: F403
