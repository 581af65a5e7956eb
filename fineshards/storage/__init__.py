"""Where bytes lie: folders on disk and on Cloud Storage, checksums, composing. No Beam."""
