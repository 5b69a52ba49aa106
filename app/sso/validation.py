"""Validates a provider's `config`; reports all problems at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from app import config, db
from app.accounts import tenants
from app.accounts.models import ADMIN, Role
from app.errors import problem
from app.outbound import client, web_waits
from app.outbound.address_policy import Rules
from app.sso import providers
from app.sso.providers import Kind, Provider, Setting
from app.sso.saml import certificates
from app.types import JSONMapping, JSONObject

TIMEOUT_SECONDS = 10
FETCHED = (
    "token_url",
    "userinfo_url",
    "jwks_url",
    "metadata_url",
)  # requested by the service itself
Problem = JSONObject


class InvalidSetting(ValueError):
    """Raised for an invalid value, with a code and a message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def request_rules() -> Rules:
    """Return the policy of requests to providers."""
    settings = config.current()
    return Rules(settings.private_targets, settings.production, TIMEOUT_SECONDS)


def validate(
    provider: Provider,
    values: JSONMapping,
    saved: JSONMapping = MappingProxyType({}),
    *,
    complete: bool = True,
) -> tuple[JSONObject, list[Problem]]:
    """Return the settings to store, and all problems.

    A stored role may stay even if it was deleted since. Disabled settings may be incomplete.
    """
    settings = {item.name: item for item in provider.settings}
    config_values: JSONObject = {}
    problems: list[Problem] = []
    with web_waits.one_lookup_deadline():
        for name, value in values.items():
            if name not in settings:
                unknown = problem(f"config.{name}"[:200], "unknown_field", "No such setting.")
                problems.append(unknown)
            elif settings[name].kind == Kind.ROLE and value and value == saved.get(name):
                config_values[name] = value
            elif value is not None and value != "":
                try:
                    config_values[name] = _clean(settings[name], value)
                except InvalidSetting as error:
                    problems.append(problem(f"config.{name}", error.code, str(error)))
    if "idp_metadata" in config_values:
        problems += _parse_metadata(config_values)
    elif (
        config_values.get("metadata_url") != saved.get("metadata_url")
        and not db.in_transaction()  # which waits for no request: the daily read comes later
    ):
        problems += _fetch_metadata(config_values)
    problems += _issuer_problems(provider, config_values)
    if complete:
        invalid_fields = {item["field"] for item in problems}
        problems += [
            item for item in missing(provider, config_values) if item["field"] not in invalid_fields
        ]
    return config_values, problems


def missing(provider: Provider, values: JSONMapping) -> list[Problem]:
    """Return a problem for each missing setting that signing in requires."""
    return [
        problem(f"config.{name}", "required", "This setting is required.")
        for name in provider.needed
        if name not in values
    ]


def _issuer_problems(provider: Provider, values: JSONMapping) -> list[Problem]:
    """Refuse a known issuer with endpoints of others, who could impersonate it."""
    if provider.discovers:  # it has no others
        return []
    provider_of_issuer = providers.find_by_issuer(values.get("issuer", ""))
    if provider_of_issuer is None:
        return []
    endpoints = [name for name in providers.ENDPOINTS if name != "issuer" and values.get(name)]
    if provider_of_issuer is provider and not endpoints:
        return []
    message = f"This is {provider_of_issuer.title}'s issuer, which requires its own endpoints."
    return [problem("config.issuer", "invalid_option", message)]


def _fetch_metadata(values: JSONObject) -> list[Problem]:
    if "metadata_url" not in values:
        return []
    from app.sso.saml import metadata  # imported on use: large

    db.db.session.rollback()  # hold no connection during the request
    try:
        with web_waits.place_or_429():
            values |= metadata.fetch(
                values["metadata_url"], request_rules(), values.get("idp_entity_id")
            )
    except metadata.InvalidMetadata as error:
        return [problem("config.metadata_url", "invalid_option", str(error))]
    return []


def _parse_metadata(values: JSONObject) -> list[Problem]:
    from app.sso.saml import metadata  # imported on use: large

    text = values.pop("idp_metadata")
    try:
        values |= metadata.parse(text)
        unsigned = metadata.demands_signatures(text) and values.get("sign_requests") is False
    except metadata.InvalidMetadata as error:
        return [problem("config.idp_metadata", "pattern_mismatch", str(error))]
    message = 'The identity provider requires signed requests (WantAuthnRequestsSigned="true").'
    return [problem("config.sign_requests", "invalid_option", message)] if unsigned else []


def _clean(setting: Setting, value: object) -> object:
    if setting.secret and isinstance(value, str) and value.strip() == providers.HIDDEN:
        raise InvalidSetting(
            "invalid_option", "Send the secret itself: there is no stored secret for ***."
        )
    if setting.kind in (Kind.TEXTS, Kind.URLS):
        return _list(setting, value)
    return _CLEANERS[setting.kind](setting, value)


def _list(setting: Setting, value: object) -> list[str]:
    items = value.split() if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise InvalidSetting("invalid_type", "Must be a list of texts.")
    if len(items) > providers.MAX_ITEMS:
        raise InvalidSetting("too_long", f"At most {providers.MAX_ITEMS} items.")
    clean = _redirect_uri if setting.kind == Kind.URLS else _text
    return [clean(setting, item) for item in items]


def _text(setting: Setting, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidSetting("invalid_type", "Must be a text.")
    if len(value) > providers.LONGEST.get(setting.kind, 2000):
        raise InvalidSetting("too_long", "This is too long.")
    value = value.strip()
    if setting.kind not in (Kind.KEY, Kind.METADATA) and not value.isprintable():
        raise InvalidSetting("pattern_mismatch", "Must be one line without control characters.")
    return str(value)


def _word(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    if (
        not all(character.isalnum() or character in "._-" for character in text)
        or not text.isascii()
    ):
        raise InvalidSetting(
            "pattern_mismatch", "May contain only letters, digits, dots, dashes and underscores."
        )
    return text


def _url(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    problem_text = None
    # A transaction waits for no name server: every request checks the address again.
    deadline = 0 if db.in_transaction() else None
    if not tenants.is_safe_url(text) or "#" in text:
        problem_text = "Must be an http or https URL without a fragment."
    elif setting.name in FETCHED:
        problem_text = client.url_problem(text, request_rules(), deadline)
    elif config.current().production and not text.startswith("https://"):
        problem_text = "Must start with https://."
    if problem_text:
        raise InvalidSetting("invalid_url", problem_text)
    return text


def _issuer(setting: Setting, value: object) -> str:
    text = _url(setting, value)
    deadline = 0 if db.in_transaction() else None
    problem_text = client.url_problem(text, request_rules(), deadline)
    if "?" in text:
        problem_text = "Must have no query."
    if problem_text:
        raise InvalidSetting("invalid_url", problem_text)
    return text


def _choice(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    if text not in setting.choices:
        raise InvalidSetting("invalid_option", f"Must be one of {', '.join(setting.choices)}.")
    return text


def _redirect_uri(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    if not tenants.is_safe_url(text):
        raise InvalidSetting("invalid_url", "Must be an absolute URL to return to.")
    return text


def _role(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    role = db.db.session.scalar(sa.select(Role.name).where(Role.name == text))
    if role is None:
        raise InvalidSetting("invalid_reference", "There is no such role.")
    if role == ADMIN:
        raise InvalidSetting("invalid_option", "New users cannot become admins by single sign-on.")
    return role


def _flag(setting: Setting, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidSetting("invalid_type", "Must be true or false.")
    return value


def _name_id(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    if text not in providers.NAME_ID_FORMATS:
        formats = ", ".join(providers.NAME_ID_FORMATS)
        raise InvalidSetting("invalid_option", f"Must be one of: {formats}.")
    return text


def _key(setting: Setting, value: object) -> str:
    text = _text(setting, value)
    if not certificates.is_signing_key(text):
        raise InvalidSetting("pattern_mismatch", "Must be a P-256 private key in PEM.")
    return text


def _certificates(setting: Setting, value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in items):
        raise InvalidSetting("invalid_type", "Must be a PEM certificate, or a list of them.")
    if (
        len(items) > certificates.MAX_CERTIFICATES
        or sum(map(len, items)) > certificates.MAX_CHARACTERS
    ):
        size = f"{certificates.MAX_CHARACTERS:,} characters in total"
        limit = f"{certificates.MAX_CERTIFICATES} certificates of {size}"
        raise InvalidSetting("too_long", f"At most {limit}.")
    try:
        return certificates.parse("\n".join(_framed(item) for item in items))
    except ValueError as error:
        raise InvalidSetting("pattern_mismatch", str(error)) from None


def _framed(text: str) -> str:
    # Without its PEM lines, it would run into the next one.
    return text if "-----" in text else certificates.to_pem(text)


_CLEANERS: Mapping[str, Callable[[Setting, object], object]] = {
    Kind.TEXT: _text,
    Kind.WORD: _word,
    Kind.METADATA: _text,
    Kind.URL: _url,
    Kind.ISSUER: _issuer,
    Kind.CHOICE: _choice,
    Kind.ROLE: _role,
    Kind.FLAG: _flag,
    Kind.KEY: _key,
    Kind.NAME_ID: _name_id,
    Kind.CERTIFICATES: _certificates,
}
