"""Records of a job and of a dataset, and their checks."""
