"""Exports and imports of records."""
