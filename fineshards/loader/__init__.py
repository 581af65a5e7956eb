"""Reads a finished dataset for training: samples, their order, batches, resumption. No Beam."""
