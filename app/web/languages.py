"""The language of pages and mails: English, or one with a catalog in `app/translations/`.

A browser shows the language that its cookie has, which signing in sets to that of the user's
profile, else the best of its Accept-Language. The API and stored texts are English.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast

import flask_babel
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from babel.support import Translations
from flask import Flask, has_request_context, request
from werkzeug.wrappers import Response

from app import config

DEFAULT = "en"
LANGUAGES: Mapping[str, str] = {DEFAULT: "English", "de": "Deutsch"}
"""Each language's own name."""
FOLDER = config.PROJECT / "app/translations"
PLACE = "{}/LC_MESSAGES/{}.po"
COOKIE, DAYS = "atrium_language", 365


def init_app(app: Flask) -> None:
    """Translate pages and mails."""
    babel = flask_babel.Babel(app, default_locale=DEFAULT, locale_selector=of_browser)
    babel.domain_instance = Messages()


class _Catalogs(dict[tuple[str, str], Translations]):
    """The translations by language and domain, without a step that compiles them first.

    Texts that are not the application's are looked up in the folders of `atrium.translations`.
    """

    def __missing__(self, key: tuple[str, str]) -> Translations:
        texts = _translations(key[0], FOLDER)
        for folder in config.running().extensions.get("atrium.translations", ()):
            if (folder / PLACE.format(key[0], "messages")).is_file():
                texts = copy.copy(texts)
                texts.add_fallback(_translations(key[0], folder))
        self[key] = texts
        return self[key]


class Messages(flask_babel.Domain):  # type: ignore[misc]  # flask_babel has no types
    """The texts of pages and mails: a process reads them once."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = _Catalogs()


@cache
def _translations(language: str, folder: Path) -> Translations:
    if language == DEFAULT and folder == FOLDER:
        return Translations()
    compiled = io.BytesIO()
    write_mo(compiled, catalog(language, "messages", folder))  # takes 70 ms for 2,600 texts
    compiled.seek(0)
    return Translations(compiled)


def catalog(language: str, domain: str, folder: Path = FOLDER) -> Catalog:
    """The stored texts of a domain: `messages` of pages and mails, `errors` of services."""
    with (folder / PLACE.format(language, domain)).open("rb") as file:
        return read_po(file, locale=language)


def of_browser() -> str:
    """The language of the request's browser; English without a request."""
    if not has_request_context():
        return DEFAULT
    chosen = request.cookies.get(COOKIE, "")
    if chosen in LANGUAGES:
        return chosen
    # werkzeug's `best_match` prefers any language that is named exactly to one with a region.
    preferred = (
        tag.partition("-")[0].lower() for tag, quality in request.accept_languages if quality
    )
    return next((language for language in preferred if language in LANGUAGES), DEFAULT)


def remember(response: Response, language: str | None) -> None:
    """Let this browser show a language from the next page on; None for that of its headers."""
    secure = config.current().production
    if language is not None:
        age = DAYS * 24 * 3600
        response.set_cookie(COOKIE, language, max_age=age, samesite="Lax", secure=secure)
    else:
        response.delete_cookie(COOKIE, samesite="Lax", secure=secure)


def gettext(text: str, **values: object) -> str:
    """A text in the page's language; its `%(name)s` are replaced if there are values."""
    return cast(str, flask_babel.gettext(text, **values))


def ngettext(singular: str, plural: str, number: int, **values: object) -> str:
    """The form of a text that goes with a number, `%(num)s` in the text."""
    return cast(str, flask_babel.ngettext(singular, plural, number, **values))


def lazy_gettext(text: str) -> str:
    """A text that is translated where a page shows it: for constants."""
    return cast(str, flask_babel.lazy_gettext(text))


def gettext_noop(text: str) -> str:
    """Mark a text for translation: pages give it to `gettext`, the API shows it in English."""
    return text
