"""Datasets as files of other trainers. Nothing is tokenized again. No Beam."""
