"""`fineshards tune`: trial builds, and the flags that they speak for."""
