"""Bodies of requests: examples of the API description, with what belongs to an account."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from app.isolation.rows import STEPS
from app.isolation.tenants import MAIL_DOMAIN, THINGS, Tenant

_numbers = count(1)


def body(method: str, route: str, example: object, of: Tenant) -> object:
    """The body of a request, which an example shows unless there is one of our own."""
    own = OWN.get((method, route))
    return own(of) if own else _adapted(example, of)


def _unique() -> str:
    # No other request has this word.
    return f"unique{next(_numbers):07d}"


def _adapted(example: object, of: Tenant, name: str = "") -> object:
    if isinstance(example, dict):
        return {key: _adapted(value, of, key) for key, value in example.items()}
    if isinstance(example, list):
        return [_adapted(value, of, name) for value in example]
    if name in THINGS:
        return of.id_of(THINGS[name])
    if name == "email":
        return f"{_unique()}@{MAIL_DOMAIN}"
    if name == "account":
        return _unique()
    return _unique() if name == "name" else example


def _a_webhook(of: Tenant) -> object:
    address = f"https://{MAIL_DOMAIN}/"
    return {"url": address, "collection": "none", "events": ["create"], "enabled": False}


def _a_flow(of: Tenant) -> object:
    return {"name": _unique(), "trigger": {"type": "manual"}, "steps": STEPS}


def _a_hook(of: Tenant) -> object:
    config = {"collection": "none", "record_id": of.id_of("users")}
    action = {"type": "delete_record", "config": config}
    return {"name": _unique(), "trigger": {"type": "manual"}, "actions": [action]}


# Bodies that must not be as the description's examples are: nothing is to be sent, and names lead
# to what is the account's.
OWN: dict[tuple[str, str], Callable[[Tenant], object]] = {
    ("POST", "/webhooks"): _a_webhook,
    ("POST", "/workflows"): _a_flow,
    ("POST", "/hooks"): _a_hook,
    ("POST", "/invitations"): lambda of: {
        "email": f"{_unique()}@{MAIL_DOMAIN}",
        "groups": [f"{of.mark}-groups-name"],
    },
    ("POST", "/auth/change-password"): lambda of: {
        "current_password": of.mark,
        "new_password": "Correct-horse-1",
    },
}
