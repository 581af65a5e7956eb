"""Steps on documents before they are tokenized: filters, rewrites, and keys of duplicates."""
