"""Builds the package; everything about it stands in pyproject.toml.

Dataflow wants a file of this name for `--setup_file`, by which workers install the package.
"""

from setuptools import setup

setup()
