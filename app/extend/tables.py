"""What a table of an extension is declared with."""

from sqlalchemy import ForeignKeyConstraint, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.types import Json, Text, UtcDateTime
from app.extensions.tables import Table

__all__ = [
    "ForeignKeyConstraint",
    "Index",
    "Json",
    "Mapped",
    "Table",
    "Text",
    "UniqueConstraint",
    "UtcDateTime",
    "mapped_column",
]
