"""What describes a dataset to others: Croissant, a dataset card, SHA-256 sums, provenance."""
