"""The field type `url`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar
from urllib.parse import urlsplit

from app import rules
from app.collections.fields.face import Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue
from app.types import JSONMapping
from app.web.languages import lazy_gettext

LONGEST_URL = 2048
NOT_IN_A_URL = re.compile(r"[\s<>\"\x00-\x1f\x7f]")


class UrlField(Field):
    """A web address."""

    type = "url"
    label = lazy_gettext("URL")
    face = Face(WidgetKind.URL, width=30, style="whole", longest=40)
    fills_indexes = True
    known_options = ("index", "search")
    names_records = True
    json_schema: ClassVar[JSONMapping] = {"type": "string", "format": "uri"}

    @property
    def example(self) -> str:
        """An address that is reserved for examples."""
        return "https://example.com/"

    def sample(self) -> str:
        """The same host."""
        return "https://example.com"

    def marked(self, mark: str, number: Callable[[], int]) -> str:
        return f"https://isolation.example/{mark}"

    def clean(self, value: object) -> str:
        """An http or https URL with a host, kept as sent but for Unicode's form NFC."""
        value = rules.composed(value) if isinstance(value, str) else ""
        if not _is_web_address(value):
            raise InvalidValue("invalid_url", "Must be a URL starting with http:// or https://.")
        self._check_index_size(value)
        return value

    def from_text(self, text: str) -> str:
        """Any text may be asked for."""
        return text


def _is_web_address(text: str) -> bool:
    if len(text) > LONGEST_URL or NOT_IN_A_URL.search(text):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
