"""Error messages of services, which are in English, in the page's language.

The catalog `errors` has them as templates, such as `At most {limit} characters.`
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import flask_babel
import re2

from app.web import languages

PLACEHOLDER = re.compile(r"\{(\w+)\}")
MAX_LENGTH = 2_000  # characters; longer messages are not looked up


def translate(message: str) -> str:
    """A message in the page's language; in English if it has no translation."""
    language = str(flask_babel.get_locale() or languages.DEFAULT)
    if language == languages.DEFAULT or len(message) > MAX_LENGTH:
        return message
    catalog = _catalog(language)
    if message in catalog.texts:
        return catalog.texts[message]
    fitting = catalog.matcher.Match(message)
    if not fitting:
        return message
    pattern, translation = catalog.templates[min(fitting)]
    # A message may hold another one.
    values = pattern.fullmatch(message).groupdict()
    return _fill(translation, {name: catalog.texts.get(v, v) for name, v in values.items()})


def _fill(template: str, values: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


@dataclass(frozen=True)
class _Catalog:
    texts: Mapping[str, str]
    templates: Sequence[tuple[Any, str]]
    """Patterns and translations, those with the most text of their own first."""
    matcher: Any
    """Finds the templates that a message fits in one pass."""


@lru_cache
def _catalog(language: str) -> _Catalog:
    catalog = languages.catalog(language, "errors")
    translated = [message for message in catalog if message.id and message.string]
    texts = {str(message.id): str(message.string) for message in translated}
    templates = [text for text in texts if PLACEHOLDER.search(text)]
    by_length = sorted(templates, key=lambda text: len(PLACEHOLDER.sub("", text)), reverse=True)
    matcher, compiled = re2.Set.FullMatchSet(), []
    for text in by_length:
        pattern = "".join(_pattern(text))
        matcher.Add(pattern)
        compiled.append((re2.compile(pattern), texts[text]))
    matcher.Compile()
    return _Catalog(texts, compiled, matcher)


def _pattern(template: str) -> Iterator[str]:
    for n, part in enumerate(PLACEHOLDER.split(template)):
        yield f"(?P<{part}>(?s:.)+?)" if n % 2 else re2.escape(part)
