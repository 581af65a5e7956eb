"""Slices of these tests, as of the others that take long."""

pytest_plugins = ["support.slices"]
