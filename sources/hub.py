"""Datasets by name: from (name, config, split, revision) to an ordered list of files."""
