"""Datasets as files of other trainers, one module per format, which pyproject.toml lists."""
