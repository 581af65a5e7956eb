"""Shards on gs://, s3:// and the hub: ranges, sizes and a cache folder."""
