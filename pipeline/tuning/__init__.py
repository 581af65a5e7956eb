"""`fineshards tune`: trial builds, and the flags to use."""
