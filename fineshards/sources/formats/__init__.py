"""The formats of input, one module each."""
