"""Routes of records."""
