"""One split of a dataset as it is read: shards, documents and the stream of tokens."""
