"""What a person asks of a dataset: status, verify, inspect. No Beam."""
