"""Whether a provider's `config` is one: every problem at once, and the form that is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from app import config, db
from app.accounts import tenants
from app.accounts.models import ADMIN, Role
from app.errors import problem
from app.outbound import client
from app.outbound.address_policy import Rules
from app.sso import providers
from app.sso.providers import Provider, Setting
from app.sso.saml import certificates
from app.types import JSONMapping, JSONObject

TIMEOUT_SECONDS = 10
FETCHED = ("token_url", "userinfo_url", "jwks_url")  # the service itself asks these
Problem = JSONObject


class InvalidSetting(ValueError):
    """Why a value is none: a code and a sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def request_rules() -> Rules:
    """Where requests to providers may go."""
    settings = config.current()
    return Rules(settings.private_targets, settings.production, TIMEOUT_SECONDS)


def validate(
    provider: Provider,
    given: JSONMapping,
    present: JSONMapping = {},
    *,
    complete: bool = True,
) -> tuple[JSONObject, list[Problem]]:
    """The settings as they are kept, and everything that is wrong with them.

    A role that stands in the present ones may stay: it may have been deleted since. What nobody
    can sign in by yet need not be complete.
    """
    known = {one.name: one for one in provider.settings}
    kept: JSONObject = {}
    found: list[Problem] = []
    for name, value in given.items():
        if name not in known:
            found.append(problem(f"config.{name}"[:200], "unknown_field", "No such setting."))
        elif known[name].kind == providers.ROLE and value and value == present.get(name):
            kept[name] = value
        elif value is not None and value != "":
            try:
                kept[name] = _clean(known[name], value)
            except InvalidSetting as wrong:
                found.append(problem(f"config.{name}", wrong.code, str(wrong)))
    if "idp_metadata" in kept:
        found += _take_metadata(kept)
    found += _problems_of_issuer(provider, kept)
    if complete:
        wrong_already = {one["field"] for one in found}
        found += [one for one in missing(provider, kept) if one["field"] not in wrong_already]
    return kept, found


def missing(provider: Provider, present: JSONMapping) -> list[Problem]:
    """What keeps people from signing in by these settings, as they are not complete."""
    return [
        problem(f"config.{name}", "required", "This setting is needed.")
        for name in provider.needed
        if name not in present
    ]


def _problems_of_issuer(provider: Provider, kept: JSONMapping) -> list[Problem]:
    """An issuer's name goes with its own endpoints: others would speak in its name."""
    named = providers.find_by_issuer(kept.get("issuer", ""))
    if named is None:
        return []
    others = [name for name in providers.ENDPOINTS if name != "issuer" and kept.get(name)]
    if named is provider and not others:
        return []
    message = f"This is {named.title}'s name: only its own endpoints can go with it."
    return [problem("config.issuer", "invalid_option", message)]


def _take_metadata(kept: JSONObject) -> list[Problem]:
    from app.sso.saml import metadata  # its library is large: where it is used only

    try:
        kept |= metadata.parse(kept.pop("idp_metadata"))
    except metadata.InvalidMetadata as error:
        return [problem("config.idp_metadata", "pattern_mismatch", str(error))]
    return []


def _clean(setting: Setting, value: object) -> object:
    if setting.secret and isinstance(value, str) and value.strip() == providers.HIDDEN:
        raise InvalidSetting(
            "invalid_option", "Send the secret itself: no secret is kept that *** is for."
        )
    if setting.kind in (providers.TEXTS, providers.URLS):
        return _list(setting, value)
    return _CLEANERS[setting.kind](setting, value)


def _list(setting: Setting, value: object) -> list[str]:
    items = value.split() if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(one, str) for one in items):
        raise InvalidSetting("invalid_type", "Must be a list of texts.")
    if len(items) > providers.MOST_ITEMS:
        raise InvalidSetting("too_long", f"At most {providers.MOST_ITEMS} of them.")
    clean = _returned_to if setting.kind == providers.URLS else _text
    return [clean(setting, one) for one in items]


def _text(setting: Setting, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidSetting("invalid_type", "Must be a text.")
    if len(value) > providers.LONGEST.get(setting.kind, 2000):
        raise InvalidSetting("too_long", "This is too long.")
    value = value.strip()
    if setting.kind not in (providers.KEY, providers.METADATA) and not value.isprintable():
        raise InvalidSetting("pattern_mismatch", "Must be one line without control characters.")
    return str(value)


def _word(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    if not all(one.isalnum() or one in "._-" for one in text) or not text.isascii():
        raise InvalidSetting(
            "pattern_mismatch", "May hold letters, digits, dots, dashes, underscores only."
        )
    return text


def _url(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    wrong = None
    if not tenants.is_safe_url(text) or "#" in text:
        wrong = "This is no http or https address."
    elif setting.name in FETCHED:
        wrong = client.url_problem(text, request_rules())
    elif config.current().production and not text.startswith("https://"):
        wrong = "Must start with https://."
    if wrong:
        raise InvalidSetting("invalid_url", wrong)
    return text


def _returned_to(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    if not tenants.is_safe_url(text):
        raise InvalidSetting("invalid_url", "This is no address to return to.")
    return text


def _role(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    known = db.db.session.scalar(sa.select(Role.name).where(Role.name == text))
    if known is None:
        raise InvalidSetting("invalid_reference", "There is no such role.")
    if known == ADMIN:
        raise InvalidSetting(
            "invalid_option", "Nobody becomes an admin by signing in for the first time."
        )
    return known


def _flag(setting: Setting, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidSetting("invalid_type", "Must be true or false.")
    return value


def _key(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    if not certificates.is_signing_key(text):
        raise InvalidSetting("pattern_mismatch", "Must be a P-256 private key in PEM.")
    return text


def _certificates(setting: Setting, value: Any) -> list[str]:
    given = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str) for one in given):
        raise InvalidSetting("invalid_type", "Must be a certificate in PEM, or a list of some.")
    if len(given) > certificates.MOST or sum(map(len, given)) > certificates.LONGEST:
        limit = f"{certificates.MOST} certificates of {certificates.LONGEST:,} characters in all"
        raise InvalidSetting("too_long", f"At most {limit}.")
    try:
        return certificates.parse("\n".join(_apart(one) for one in given))
    except ValueError as error:
        raise InvalidSetting("pattern_mismatch", str(error)) from None


def _apart(text: str) -> str:
    # One without its frame would run into the next.
    return text if "-----" in text else certificates.to_pem(text)


_CLEANERS: Mapping[str, Callable[[Setting, object], object]] = {
    providers.TEXT: _text,
    providers.WORD: _word,
    providers.METADATA: _text,
    providers.URL: _url,
    providers.ROLE: _role,
    providers.FLAG: _flag,
    providers.KEY: _key,
    providers.CERTIFICATES: _certificates,
}
