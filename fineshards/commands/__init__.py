"""Commands on an existing dataset: status, verify, inspect. Without Beam."""
