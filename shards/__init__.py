"""What is on disk: layout arithmetic, `.npy` files, document tables, manifest, storage. No Beam."""
