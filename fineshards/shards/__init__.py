"""The dataset's files: layout, plan, shards, document tables, checkpoints, manifest. No Beam."""
