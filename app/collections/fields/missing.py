"""Fields whose type belongs to an extension that is not loaded."""

from __future__ import annotations

from functools import lru_cache

import structlog

from app.collections.fields.field import Field, InvalidValue
from app.web.languages import lazy_gettext

log = structlog.get_logger()

NOT_LOADED = "No loaded extension has the type {}, so that nothing checks what is written here."


class MissingField(Field):
    """Stored texts, which are read as they are, and which nobody writes (`Definition.missing`)."""

    label = lazy_gettext("Not loaded")

    @classmethod
    def of_type(cls, name: str) -> type[MissingField]:
        """The class of fields of a type, which the log names once."""
        return _of_type(name)

    @property
    def not_loaded(self) -> str:
        """What to tell who writes it, or changes its definition."""
        return NOT_LOADED.format(self.type)

    def clean(self, value: object) -> str:
        """A text, such as a default that was checked when its type was known."""
        if not isinstance(value, str):
            raise InvalidValue("type_not_loaded", self.not_loaded)
        return value


@lru_cache(100)
def _of_type(name: str) -> type[MissingField]:
    log.warning("field type is not loaded", type=name)
    return type("MissingField", (MissingField,), {"type": name})
