"""What a worker does, without Beam."""
