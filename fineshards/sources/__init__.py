"""What is read: input files, their blocks and rows, and datasets that resolve to files. No Beam."""
