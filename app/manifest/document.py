"""Reads and writes manifests: YAML 1.2 as JSON has it, with the line of every value.

The text is untrusted. Events are read one by one, so limits hold before anything is built; aliases
and tags, which blow up or construct objects elsewhere, are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from app.errors import InvalidValues, problem
from app.types import JSONMapping, JSONObject
from app.web import serialization

MAX_BYTES = 2 * 2**20
MAX_DEPTH = 32
MAX_VALUES = 100_000
NULLS = {"", "~", "null", "Null", "NULL"}
BOOLEANS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")

STRANGE = re.compile("[\0\ud800-\udfff]")
STEP = re.compile(r"([^.\[\]]+)|\[([0-9]{1,6})\]")
NAMED_BY = ("name", "provider_name")
"""The properties that name an item of a list."""
PLAIN = re.compile(r"\w[\w -]{0,79}")
# Characters that need quotes and escapes; and texts that cannot be a block of lines.
UNSAFE = re.compile(r"[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff]")
UNFIT = re.compile(rf"{UNSAFE.pattern}| \n|\A\s")
LAYOUT: Any = {"allow_unicode": True, "width": 100}
TAG = "tag:yaml.org,2002:"

Path = tuple[str | int, ...]
"""Names and indexes that lead from the root to a value."""


@dataclass
class Document:
    """The content of a manifest, and where its values are."""

    content: JSONMapping
    lines: Mapping[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """Return the line of a value, or of the nearest one around it; None without a text."""
        return next(
            (
                self.lines[path[:end]]
                for end in range(len(path), -1, -1)
                if path[:end] in self.lines
            ),
            None,
        )

    def problem(self, path: Path, code: str, message: str) -> JSONObject:
        """Return an entry of `details` with its place."""
        line = self.line(path)
        return problem(self.place(path), code, message, **({} if line is None else {"line": line}))

    def place(self, path: Path) -> str:
        """Return a path as text, with the names of what lists have: `collections.posts.schema`."""
        value: Any = self.content
        text = ""
        for step in path:
            try:
                value = value[step]
            except (LookupError, TypeError):
                value = None
            has_names = isinstance(step, int) and isinstance(value, Mapping)
            names = (value.get(one) for one in NAMED_BY) if has_names else ()
            name = next((one for one in names if isinstance(one, str) and PLAIN.fullmatch(one)), "")
            text += f"[{step}]" if isinstance(step, int) and not name else f".{name or step}"[:81]
        return text.removeprefix(".")


def path_of(place: str) -> Path:
    """Return the path of a place such as `steps[0].type`."""
    return tuple(int(index) if index else name for name, index in STEP.findall(place))


def parse(text: str) -> Document:
    """Parse YAML or JSON. Raises InvalidValues with the line of the first error."""
    if len(text) > MAX_BYTES:
        _refuse(1, f"A manifest has at most {MAX_BYTES // 2**20} MiB.")
    reader = _Reader(text)
    content = reader.read()
    if not isinstance(content, dict):
        _refuse(1, "A manifest is a mapping that begins with `version: 1`.")
    return Document(content, reader.lines)


def dump(content: JSONMapping) -> str:
    """Return the YAML of a manifest."""
    text: str = yaml.serialize(_node(content), Dumper=yaml.SafeDumper, **LAYOUT)
    return text


class _Reader:
    """Builds values from the parser's events."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Path, int] = {}
        self._events: Iterator[Any] = yaml.parse(text, Loader=yaml.CSafeLoader)
        self._count = 0

    def read(self) -> object:
        """Return the content of the only document."""
        try:
            next(self._events), next(self._events)  # the starts of stream and document
            content = self._value(self._next(), ())
            next(self._events)  # the end of the document
            if not isinstance(following := next(self._events), yaml.StreamEndEvent):
                _refuse(following.start_mark.line + 1, "A manifest is one document.")
        except StopIteration:
            _refuse(1, "The file is empty.")
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            _refuse(mark.line + 1 if mark else 1, f"This is not valid YAML: {error.problem}.")
        except yaml.YAMLError:  # characters that YAML does not allow
            _refuse(1, "This is not valid YAML: it has characters that are not allowed.")
        return content

    def _next(self) -> Any:
        event = next(self._events)
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            _refuse(line, "Aliases are not supported: write the value again.")
        if getattr(event, "tag", None) not in (None, "!"):
            _refuse(line, "Tags are not supported.")
        self._count += 1
        if self._count > MAX_VALUES:
            _refuse(line, f"A manifest has at most {MAX_VALUES:,} values.")
        return event

    def _value(self, event: Any, path: Path) -> object:
        line = event.start_mark.line + 1
        self.lines.setdefault(path, line)
        if len(path) > MAX_DEPTH:
            _refuse(line, f"Values are nested deeper than {MAX_DEPTH} levels.")
        if isinstance(event, yaml.MappingStartEvent):
            mapping: JSONObject = {}
            while not isinstance(key := self._next(), yaml.MappingEndEvent):
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarEvent):
                    _refuse(line, "A name is a text.")
                name = _text(key)
                if name in mapping:
                    _refuse(line, f"{name[:80]} occurs twice.")
                self.lines[*path, name] = line
                mapping[name] = self._value(self._next(), (*path, name))
            return mapping
        if isinstance(event, yaml.SequenceStartEvent):
            sequence = list[object]()
            while not isinstance(item := self._next(), yaml.SequenceEndEvent):
                sequence.append(self._value(item, (*path, len(sequence))))
            return sequence
        text = _text(event)
        value = resolve(text) if event.implicit[0] else text
        if isinstance(value, float) and not math.isfinite(value):
            _refuse(line, serialization.OUT_OF_RANGE)
        return value


def _text(event: Any) -> str:
    text: str = event.value
    if STRANGE.search(text):
        _refuse(event.start_mark.line + 1, "NUL and lone surrogates are not allowed.")
    return text


def resolve(plain: str) -> object:
    """Return the value of an unquoted text: null, a boolean, a number, else the text itself."""
    if plain in NULLS:
        return None
    if plain in BOOLEANS:
        return BOOLEANS[plain]
    return (
        serialization.without_rounding(serialization.number(plain))
        if NUMBER.fullmatch(plain)
        else plain
    )


def _refuse(line: int, message: str) -> NoReturn:
    raise InvalidValues([problem(None, "manifest_invalid", message, line=line)])


def _node(value: object) -> Any:
    if isinstance(value, Mapping):
        pairs = [(_node(name), _node(item)) for name, item in value.items()]
        return yaml.MappingNode(f"{TAG}map", pairs, flow_style=not pairs)
    if isinstance(value, str):
        is_block = "\n" in value and not UNFIT.search(value)
        is_plain = isinstance(resolve(value), str) and not UNSAFE.search(value)
        style = "|" if is_block else None if is_plain else '"'
        return yaml.ScalarNode(f"{TAG}str", value, style=style)
    if isinstance(value, Sequence):
        items = [_node(item) for item in value]
        is_short = all(isinstance(item, yaml.ScalarNode) for item in items)
        return yaml.SequenceNode(f"{TAG}seq", items, flow_style=is_short)
    if value is None:
        return yaml.ScalarNode(f"{TAG}null", "null")
    if isinstance(value, bool):
        return yaml.ScalarNode(f"{TAG}bool", str(value).lower())
    if isinstance(value, int):
        return yaml.ScalarNode(f"{TAG}int", str(value))
    digits, exponent, power = repr(value).partition("e")
    # YAML 1.1 needs a point in a float.
    text = f"{digits}{'' if '.' in digits else '.0'}{exponent}{power}"
    return yaml.ScalarNode(f"{TAG}float", text)
