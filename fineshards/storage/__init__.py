"""Output folders on disk and on Cloud Storage: files, checksums. No Beam."""
