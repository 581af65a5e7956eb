"""Tables and lists beside the shards: documents, statistics, decisions, keys."""
