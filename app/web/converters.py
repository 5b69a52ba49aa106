"""URL converters for ids."""

from __future__ import annotations

import re
import uuid

from werkzeug.routing import BaseConverter

LARGEST_ROLE_ID = 2**31 - 1


class UuidPath(BaseConverter):
    """A UUID; checked after authentication (422)."""

    expected = "a UUID"

    @staticmethod
    def accepts(text: str) -> bool:
        """Whether the text is a UUID in canonical form."""
        try:
            return str(uuid.UUID(text)) == text.lower()
        except ValueError:
            return False


class IntegerPath(BaseConverter):
    """An integer of up to 31 bits; checked after authentication (422)."""

    expected = "a whole number"

    @staticmethod
    def accepts(text: str) -> bool:
        return re.fullmatch(r"[0-9]{1,10}", text) is not None and int(text) <= LARGEST_ROLE_ID


class LargeIntegerPath(BaseConverter):
    """An integer of up to 63 bits; checked after authentication (422)."""

    expected = "a whole number"

    @staticmethod
    def accepts(text: str) -> bool:
        return re.fullmatch(r"[0-9]{1,19}", text) is not None and int(text) < 2**63
