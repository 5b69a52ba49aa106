"""Request bodies: examples of the API description, with an account's ids and marks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from app.isolation.rows import STEPS
from app.isolation.tenants import MAIL_DOMAIN, Tenant, table_by_parameter

_counter = count(1)


def body(method: str, route: str, example: object, tenant: Tenant) -> object:
    """Build a request body: from BODIES, or from the description's example."""
    build = BODIES.get((method, route))
    return build(tenant) if build else _adapted(example, tenant)


def _unique() -> str:
    # Occurs in no other request.
    return f"unique{next(_counter):07d}"


def _adapted(example: object, tenant: Tenant, name: str = "") -> object:
    if isinstance(example, dict):
        return {key: _adapted(value, tenant, key) for key, value in example.items()}
    if isinstance(example, list):
        return [_adapted(value, tenant, name) for value in example]
    if name in table_by_parameter():
        return tenant.id_of(table_by_parameter()[name])
    if name == "email":
        return f"{_unique()}@{MAIL_DOMAIN}"
    if name == "domain":
        return f"{_unique()}.{MAIL_DOMAIN}"
    if name == "account":
        return _unique()
    return _unique() if name == "name" else example


def _webhook(tenant: Tenant) -> object:
    address = f"https://{MAIL_DOMAIN}/"
    return {"url": address, "collection": "none", "events": ["create"], "enabled": False}


def _workflow(tenant: Tenant) -> object:
    return {"name": _unique(), "trigger": {"type": "manual"}, "steps": STEPS}


def _hook(tenant: Tenant) -> object:
    config = {"collection": "none", "record_id": tenant.id_of("users")}
    action = {"type": "delete_record", "config": config}
    return {"name": _unique(), "trigger": {"type": "manual"}, "actions": [action]}


def _scim_user(tenant: Tenant) -> object:
    return {"userName": f"{_unique()}@{MAIL_DOMAIN}"}


def _scim_group(tenant: Tenant) -> object:
    return {"displayName": _unique(), "members": [{"value": tenant.id_of("users")}]}


def _scim_patch(tenant: Tenant) -> object:
    return {"Operations": [{"op": "replace", "path": "externalId", "value": _unique()}]}


def _scim_members(tenant: Tenant) -> object:
    members = [{"value": tenant.id_of("users")}]
    return {"Operations": [{"op": "add", "path": "members", "value": members}]}


def _scim_search(tenant: Tenant) -> object:
    return {"filter": f'id eq "{tenant.id_of("users")}" or externalId co "{tenant.mark}"'}


# Bodies that differ from the description's examples, so that nothing is sent, and names refer to
# the account's objects.
BODIES: dict[tuple[str, str], Callable[[Tenant], object]] = {
    ("POST", "/webhooks"): _webhook,
    ("POST", "/workflows"): _workflow,
    ("POST", "/hooks"): _hook,
    ("PUT", "/account/retention"): lambda tenant: {"deliveries_days": 7},
    ("POST", "/account/retention/plan"): lambda tenant: {"deliveries_days": 7},
    ("POST", "/scim/v2/.search"): _scim_search,
    ("POST", "/scim/v2/Users/.search"): _scim_search,
    ("POST", "/scim/v2/Groups/.search"): _scim_search,
    ("POST", "/scim/v2/Users"): _scim_user,
    ("PUT", "/scim/v2/Users/<user_id>"): _scim_user,
    ("PATCH", "/scim/v2/Users/<user_id>"): _scim_patch,
    ("POST", "/scim/v2/Groups"): _scim_group,
    ("PUT", "/scim/v2/Groups/<group_id>"): _scim_group,
    ("PATCH", "/scim/v2/Groups/<group_id>"): _scim_members,
    ("POST", "/invitations"): lambda tenant: {
        "email": f"{_unique()}@{MAIL_DOMAIN}",
        "groups": [f"{tenant.mark}-groups-name"],
    },
    ("POST", "/auth/change-password"): lambda tenant: {
        "current_password": tenant.mark,
        "new_password": "Correct-horse-1",
    },
}
