"""spaCy's words, fast, and the forms of text that steps compare."""
