"""Pages of records."""
