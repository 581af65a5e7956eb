"""How far a job is, in words and as a table."""
