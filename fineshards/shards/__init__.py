"""The dataset on disk: layout, plan, `.npy` files, document tables, records, manifest. No Beam."""
