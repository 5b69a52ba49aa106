"""The fields that every record has without being asked for."""

from __future__ import annotations

from dataclasses import dataclass

from app.collections.fields.datetime import DatetimeField
from app.collections.fields.field import Field
from app.collections.fields.reference import ReferenceField


@dataclass(frozen=True)
class SystemField:
    """A column that every record has."""

    name: str
    like: Field  # a field of the same type
    nullable: bool = False


SYSTEM_FIELDS = {
    one.name: one
    for one in (
        SystemField("id", ReferenceField("id")),
        SystemField("account_id", ReferenceField("account_id")),
        SystemField("created_at", DatetimeField("created_at")),
        SystemField("updated_at", DatetimeField("updated_at")),
        SystemField("created_by", ReferenceField("created_by"), nullable=True),
        SystemField("updated_by", ReferenceField("updated_by"), nullable=True),
    )
}
