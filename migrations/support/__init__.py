"""What revisions need besides Alembic and SQLAlchemy, as it was when they were written.

The application goes on, revisions do not: they import nothing of `app`, so that a change there
cannot change what they do. Change this folder only to correct it.
"""
