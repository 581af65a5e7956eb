"""Builds the package from pyproject.toml, which describes it.

Beam's `--setup_file` asks for a file of this name. Workers then install the package without its
extras; `--requirements_file requirements.txt` beside it installs the libraries.
"""

from setuptools import setup

setup()
