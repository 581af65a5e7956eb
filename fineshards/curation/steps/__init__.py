"""The steps of recipes, one per file."""
