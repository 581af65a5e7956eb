"""Reads finished datasets for training: samples, their order, batches and resuming. No Beam."""
