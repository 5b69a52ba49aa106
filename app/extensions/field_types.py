"""Field types of extensions: texts that a class of theirs checks and brings into its form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

import orjson

from app import rules
from app.collections import fields
from app.collections.fields.face import Face, WidgetKind
from app.extensions import registry, running
from app.extensions.registry import Handler, Kind, LoadError
from app.extensions.running import HandlerFailed, Refused

NAME = re.compile(r"[a-z][a-z0-9_]{1,39}")
LONGEST = 2048  # characters of a value, as of a `url`


class ExtensionField(fields.Field):
    """A field whose type an extension defines."""

    checker: ClassVar[Any]
    """An instance of the extension's class."""
    handler: ClassVar[Handler]
    """What calls its `clean`, in the name of the class."""
    face = Face(WidgetKind.TEXT, style="whole")
    fills_indexes = True
    names_records = True

    @property
    def example(self) -> str | None:
        """What the class has as its `example`."""
        return getattr(self.checker, "example", None)

    def sample(self) -> str:
        """The example, or a word."""
        return self.example or "text"

    def clean(self, value: object) -> str:
        """What the class makes of a text. Raises InvalidValue where it refuses."""
        if not isinstance(value, str):
            raise fields.InvalidValue("invalid_type", "Must be a text.")
        if len(value) > LONGEST:
            raise fields.InvalidValue("too_long", f"Must have at most {LONGEST} characters.")
        try:
            given = rules.composed(value), dict(self.options)
            cleaned = running.run(
                *(self.handler, None, *given),
                passing=(Refused,),
                function=self.checker.clean,
                then=_checked,
            )
        except Refused as refusal:
            (found,) = refusal.details
            raise fields.InvalidValue(found["code"], found["message"]) from None
        text = rules.composed(cleaned)
        self._check_index_size(text)
        return text

    @property
    def column_default(self) -> str | None:
        """The default as it is stored; as it was sent if the class does not take it any more."""
        try:
            return None if self.default is None else self.clean(self.default)
        except (fields.InvalidValue, HandlerFailed):  # records are read whatever it thinks of that
            return str(self.default)

    def definition_problems(self) -> Iterator[str]:
        """What the class says of its options."""
        check = getattr(self.checker, "check_options", None)
        if check is not None:
            try:
                running.run(self.handler, None, dict(self.options), function=check)
            except Refused as refusal:
                yield refusal.details[0]["message"]


def check(name: str, kind: Any) -> None:
    """Check a class that is to be a field type. Raises LoadError."""
    called = f"@field_type({name!r})"
    built_in = fields.TYPES.get(name)
    if not NAME.fullmatch(name):
        raise LoadError(f"{called}: use 2 to 40 small letters, digits and underscores.")
    if built_in is not None and not issubclass(built_in, ExtensionField):
        raise LoadError(f"{called}: the product has a field type of this name.")
    clean = getattr(kind, "clean", None)
    if not isinstance(kind, type) or not callable(clean):
        raise LoadError(f"{called}: decorate a class with clean(self, value, options).")
    registry.check_runs(clean, f"clean of {called}")
    label, options = getattr(kind, "label", None), getattr(kind, "options", ())
    if not isinstance(label, str) or not label:
        raise LoadError(f"{called}: give the class a label, which forms show.")
    if not isinstance(options, list | tuple) or not all(isinstance(one, str) for one in options):
        raise LoadError(f"{called}: options must be a list of names.")
    schema = getattr(kind, "schema", None)
    if not isinstance(schema, dict) or schema.get("type") != "string":
        raise LoadError(f'{called}: its schema must be a dict with "type": "string".')
    try:
        orjson.dumps(schema)
    except TypeError as error:
        raise LoadError(f"{called}: its schema is no JSON ({error}).") from None
    try:
        kind()
    except TypeError as error:
        raise LoadError(f"{called}: the class is called without arguments ({error}).") from error


def _checked(text: object) -> str:
    """What `clean` has returned. Raises TypeError, and UnicodeEncodeError for lone surrogates."""
    if not isinstance(text, str) or len(text) > LONGEST or "\0" in text:
        raise TypeError(f"clean must return a text of at most {LONGEST} characters, without NUL")
    text.encode()
    return text


@registry.on_change
def register() -> None:
    """Make the types of the loaded extensions known, and those of others unknown."""
    for name, kind in [*fields.TYPES.items()]:
        if issubclass(kind, ExtensionField):
            del fields.TYPES[name]
    for name, handlers in registry.of(Kind.FIELD_TYPE).items():
        handler = handlers[0]
        author: Any = handler.function
        checker = author()
        members = {
            "type": name,
            "label": author.label,
            "json_schema": author.schema,
            "known_options": ("index", *getattr(author, "options", ())),
            "checker": checker,
            "handler": handler,
            "__doc__": author.__doc__,
        }
        fields.register(type(author.__name__, (ExtensionField,), members))
