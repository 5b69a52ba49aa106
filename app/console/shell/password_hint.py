"""What a password needs, as a hint at its input."""

from __future__ import annotations

import flask_babel
from babel.lists import format_list

from app import config
from app.web.languages import gettext, lazy_gettext

CLASSES = {
    "upper": lazy_gettext("an upper-case letter"),
    "lower": lazy_gettext("a lower-case letter"),
    "digit": lazy_gettext("a digit"),
    "special": lazy_gettext("a special character"),
}


def password_hint() -> str:
    """The length and the kinds of characters that the settings require."""
    settings = config.current()
    length = settings.password_min_length
    if not settings.password_require:
        return gettext("At least %(count)s characters.", count=length)
    kinds = [str(CLASSES[name]) for name in settings.password_require]
    together = format_list(kinds, locale=flask_babel.get_locale())
    return gettext("At least %(count)s characters, with %(kinds)s.", count=length, kinds=together)
