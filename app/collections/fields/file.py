"""The field type `file`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import orjson

from app import config, rules
from app.collections.fields.face import Face, WidgetKind
from app.collections.fields.field import Field, InvalidValue
from app.collections.fields.json import parse_json
from app.types import JSONMapping, JSONObject, cached_property
from app.web import PREFIX
from app.web.languages import lazy_gettext

MAX_BYTES = 10 * 2**20
MOST_FILES, MOST_TYPES = 100, 50
MIME_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/(\*|[a-z0-9][a-z0-9!#$&^_.+-]{0,126})")
PROPERTIES: Mapping[str, rules.Type] = {
    "id": rules.Type.TEXT,
    "name": rules.Type.TEXT,
    "size": rules.Type.NUMBER,
    "mime_type": rules.Type.TEXT,
    "sha256": rules.Type.TEXT,
}
VALUE: JSONMapping = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "name": {"type": "string"},
        "size": {"type": "integer"},
        "mime_type": {"type": "string"},
        "sha256": {"type": "string"},
        "url": {"type": "string", "format": "uri"},
        "expires_at": {"type": "string", "format": "date-time"},
    },
    "required": ["id"],
}


class FileField(Field):
    """A file, or a list of them; stored as the JSON text of their properties."""

    type = "file"
    label = lazy_gettext("File")
    face = Face(WidgetKind.FILES, (), width=18)
    _address: str
    known_options = ("max_bytes", "max_files", "mime_types")
    may_be_unique = False
    takes_default = takes_expression = False
    filterable = False
    rule_type = rules.Type.JSON
    json_schema: ClassVar[JSONMapping] = VALUE

    def __post_init__(self) -> None:
        address = f"{config.current().base_url}{PREFIX}/files/"
        object.__setattr__(self, "_address", address)

    @cached_property
    def largest(self) -> int:
        """The bytes that a file may have."""
        return int(self.options.get("max_bytes", MAX_BYTES))

    @cached_property
    def most_files(self) -> int:
        """The number of files that it may hold; beyond one, its value is a list."""
        return int(self.options.get("max_files", 1))

    @property
    def is_list(self) -> bool:  # type: ignore[override]
        return self.most_files > 1

    def listed(self, value: str) -> list[str]:
        """The ids of the files."""
        return [str(file["id"]) for file in files_in(value)]

    def entry(self, value: object) -> str:
        """The id of a file, of which an object may have it."""
        return super().entry(value.get("id") if isinstance(value, dict) else value).lower()

    @property
    def properties(self) -> Mapping[str, rules.Type]:  # type: ignore[override]
        """The properties of a file that rules may read; none of a list of files."""
        return PROPERTIES if self.most_files == 1 else {}

    def takes(self, mime_type: str) -> bool:
        accepted: Sequence[str] = self.options.get("mime_types") or ()
        kind = mime_type.partition("/")[0]
        return not accepted or mime_type in accepted or f"{kind}/*" in accepted

    def sample(self) -> object:
        return []

    def clean(self, value: object) -> Sequence[str]:
        """The ids of the files that a body names; `app.files.ownership` finds what they stand for.

        Raises InvalidValue.
        """
        given = value if isinstance(value, list) else [value]
        if len(given) > self.most_files:
            raise InvalidValue("too_many_files", f"Takes at most {self.most_files} files.")
        ids = [one.get("id") if isinstance(one, dict) else one for one in given]
        if not all(isinstance(one, str) for one in ids):
            message = "Must be the id of an upload, or an object with it."
            raise InvalidValue("invalid_type", message)
        return [str(one).lower() for one in ids]

    def parse(self, text: str, *, infinite: bool = False) -> object:
        """JSON of ids, or of objects with them."""
        return parse_json(text, infinite=infinite)

    def stored(self, files: Sequence[JSONMapping]) -> str | None:
        """The stored text of files; None for none."""
        values = [{name: one[name] for name in PROPERTIES} for one in files]
        if not values:
            return None
        return orjson.dumps(values if self.most_files > 1 else values[0]).decode()

    def shown(self, value: str) -> object:
        files = [{**one, "url": f"{self._address}{one['id']}"} for one in files_in(value)]
        return files if self.most_files > 1 else next(iter(files), None)

    @property
    def value_schema(self) -> JSONObject:
        return self._one_or_list(dict(self.json_schema))

    @property
    def input_schema(self) -> JSONObject:
        """As `value_schema`; the id of a file is enough."""
        an_id = {"type": "string", "format": "uuid"}
        return self._one_or_list({"anyOf": [an_id, dict(self.json_schema)]})

    def _one_or_list(self, schema: JSONObject) -> JSONObject:
        return {"type": "array", "items": schema} if self.most_files > 1 else schema

    def definition_problems(self) -> Iterator[str]:
        """Options of the wrong kind or beyond the bounds."""
        most = config.current().file_max_bytes
        for name, bound in (("max_bytes", most), ("max_files", MOST_FILES)):
            value = self.options.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= bound:
                yield f"{name} must be a whole number from 1 to {bound}."
        types = self.options.get("mime_types", [])
        if not isinstance(types, list) or len(types) > MOST_TYPES:
            yield f"mime_types must be a list of at most {MOST_TYPES} types."
        elif not all(isinstance(one, str) and MIME_TYPE.fullmatch(one) for one in types):
            yield "mime_types are like image/png or image/*."
        if self.default is not None:
            yield "Files cannot have a default, as each belongs to one record."


def files_in(value: str | None) -> list[JSONObject]:
    """The files of a stored value."""
    found = orjson.loads(value) if value else []
    return found if isinstance(found, list) else [found]
