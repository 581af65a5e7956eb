"""All that finds damage."""
