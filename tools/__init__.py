"""Makes tables that the package ships. Not shipped itself."""
