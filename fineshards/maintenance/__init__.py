"""Changes of a finished dataset: redact and repair."""
