"""Validates the config of actions; the output of templates is checked at run time."""

from __future__ import annotations

from collections.abc import Iterator

from email_validator import validate_email

from app.accounts import service as accounts
from app.outbound import client
from app.webhooks import delivery
from app.workflows.language import templates
from app.workflows.language.definition import Written

MAX_ADDRESSES = 20  # of one mail
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
TEXTS = ("url", "to", "subject", "collection", "record_id", "filter", "sort")


def problems(kind: str, config: Written) -> Iterator[tuple[str, str]]:
    """The problems of an action's config: property and message."""
    for name in (name for name in TEXTS if config.get(name) is not None):
        is_list = name == "to" and isinstance(config[name], list)
        if not isinstance(config[name], str) and not is_list:
            yield name, "Must be text."
    if kind == "send_email" and not isinstance(config.get("body", ""), str):
        yield "body", "Must be text."
    if kind == "send_email":
        yield from _address_problems(config.get("to"))
    data = config.get("data")
    if data is not None and not isinstance(data, dict) and not _is_template(data):
        yield "data", "Must be an object of the record's fields, or a template."
    limit = config.get("limit")
    if limit is not None and not _is_template(limit) and not _is_between(limit, 1, 100):
        yield "limit", "Must be a number from 1 to 100."
    method = config.get("method")
    if method is not None and not (isinstance(method, str) and method.upper() in METHODS):
        yield "method", f"Must be one of: {', '.join(METHODS)}."
    yield from _header_problems(config.get("headers"))


def _address_problems(value: object) -> Iterator[tuple[str, str]]:
    addresses = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    if isinstance(value, list) and not 1 <= len(value) <= MAX_ADDRESSES:
        yield "to", f"From 1 to {MAX_ADDRESSES} addresses."
    for item in addresses:
        if not isinstance(item, str):
            yield "to", "Addresses must be text."
        elif not templates.has_template(item) and address(item) is None:
            yield "to", f"{item[:80]!r} is not an email address."


def _header_problems(headers: object) -> Iterator[tuple[str, str]]:
    if headers is None:
        return
    if not isinstance(headers, dict) or len(headers) > 50:
        yield "headers", "Must be an object of at most 50 headers."
        return
    for name, value in headers.items():
        short_name = name[:80]
        if not client.HEADER_NAME.fullmatch(name):
            yield "headers", f"{short_name!r} is not a valid header name."
        elif _is_reserved(name.lower()):
            yield "headers", f"{short_name} is set by the service."
        elif not isinstance(value, str):
            yield "headers", f"The value of {short_name} must be text."


def _is_reserved(header: str) -> bool:
    normalized = header.replace("_", "-")
    return normalized == "idempotency-key" or (
        delivery.is_reserved(normalized) and header != "content-type"
    )


def _is_template(value: object) -> bool:
    return isinstance(value, str) and bool(templates.TEMPLATE.fullmatch(value.strip()))


def _is_between(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def address(text: str) -> str | None:
    """The normalized email address; None if the text is not one."""
    if not accounts.is_email(text):
        return None
    return str(validate_email(text, check_deliverability=False).normalized)
