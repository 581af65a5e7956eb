"""Input: files, their blocks and rows, and dataset names that resolve to files. No Beam."""
