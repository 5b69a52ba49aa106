"""How accounts and users are shown, to whomever may see them."""

from __future__ import annotations

import marshmallow as ma

from app import rest

ACCOUNT = {
    "id": "019a9f00-0000-7000-8000-00000000000a",
    "slug": "acme",
    "name": "Acme",
    "account_code": "AA0001",
    "created_at": "2026-11-20T12:00:00.123456Z",
}
USER = {
    "id": "019a9f00-0000-7000-8000-00000000000b",
    "email": "alice@acme.example",
    "name": None,
    "account_id": ACCOUNT["id"],
    "account_code": "AA0001",
    "account_name": "Acme",
    "role": "admin",
    "role_id": 1,
    "role_name": "admin",
    "groups": ["pii_access"],
    "is_active": True,
    "email_verified": True,
    "email_verified_at": "2026-11-20T12:00:00.123456Z",
    "auth_provider": "password",
    "created_at": "2026-11-20T12:00:00.123456Z",
    "updated_at": "2026-11-20T12:00:00.123456Z",
    "last_login": None,
}


class AccountView(rest.Schema):
    """An account."""

    id = ma.fields.String(required=True)
    slug = ma.fields.String(required=True)
    name = ma.fields.String(required=True)
    account_code = ma.fields.String(required=True)
    created_at = rest.Timestamp(required=True)


class UserView(rest.Schema):
    """A user; never with a password hash."""

    id = ma.fields.String(required=True)
    email = ma.fields.String(required=True)
    name = ma.fields.String(required=True, allow_none=True)
    account_id = ma.fields.String(required=True)
    account_code = ma.fields.String(required=True, attribute="account.account_code")
    account_name = ma.fields.String(required=True, attribute="account.name")
    role = ma.fields.String(required=True, attribute="role.name")
    role_id = ma.fields.Integer(required=True)
    role_name = ma.fields.String(required=True)
    groups = ma.fields.List(ma.fields.String(), attribute="group_names", required=True)
    is_active = ma.fields.Boolean(required=True)
    email_verified = ma.fields.Boolean(required=True)
    email_verified_at = rest.Timestamp(required=True, allow_none=True)
    auth_provider = ma.fields.String(required=True)
    created_at = rest.Timestamp(required=True)
    updated_at = rest.Timestamp(required=True)
    last_login = rest.Timestamp(required=True, allow_none=True)
