"""Shards on gs:// and s3://: samples by ranges, or whole shards in a folder on a local disk."""
