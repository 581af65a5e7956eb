"""The formats of input, one module each; pyproject.toml lists them as entry points."""
