"""Measurements: the job beside other ways of doing the same, and the plan at FineWeb's size."""
