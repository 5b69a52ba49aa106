"""Error messages of services, which are in English, in the page's language.

The catalog `errors` has them as templates, such as `At most {limit} characters.`
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import flask_babel
import re2
from babel.messages.mofile import read_mo

from app.config import PROJECT
from app.http import languages

PLACEHOLDER = re.compile(r"\{(\w+)\}")
MAX_LENGTH = 2_000  # characters; longer messages are not looked up


def translate(message: str) -> str:
    """A message in the page's language; in English if it has no translation."""
    language = str(flask_babel.get_locale() or languages.DEFAULT)
    if language == languages.DEFAULT or len(message) > MAX_LENGTH:
        return message
    texts, templates = _catalog(language)
    if message in texts:
        return texts[message]
    for pattern, translation in templates:
        if match := pattern.fullmatch(message):
            # A message may hold another one.
            values = {name: texts.get(value, value) for name, value in match.groupdict().items()}
            return _fill(translation, values)
    return message


def _fill(template: str, values: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


@lru_cache
def _catalog(language: str) -> tuple[Mapping[str, str], Sequence[tuple[Any, str]]]:
    """The texts of a language, and its templates: those with the most text of their own first."""
    with (PROJECT / languages.FOLDER / language / "LC_MESSAGES/errors.mo").open("rb") as file:
        texts = {str(message.id): str(message.string) for message in read_mo(file) if message.id}
    templates = [text for text in texts if PLACEHOLDER.search(text)]
    by_length = sorted(templates, key=lambda text: len(PLACEHOLDER.sub("", text)), reverse=True)
    return texts, [(re2.compile("".join(_pattern(text))), texts[text]) for text in by_length]


def _pattern(template: str) -> Iterator[str]:
    for n, part in enumerate(PLACEHOLDER.split(template)):
        yield f"(?P<{part}>(?s:.)+?)" if n % 2 else re2.escape(part)
