"""Files that describe a dataset to others: Croissant, a dataset card and SHA-256 sums."""
