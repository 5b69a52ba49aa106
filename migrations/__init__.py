"""Alembic revisions of the core tables, and what they need (`support/`)."""
