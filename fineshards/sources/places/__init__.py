"""Where input lies: the hub, HTTP, gs://, s3:// and what fsspec knows."""
