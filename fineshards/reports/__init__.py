"""A dataset as one page to look at in a browser."""
