"""Provider settings: the account's own, else the system's (contract section 10)."""

from __future__ import annotations

from typing import Any

import orjson
import sqlalchemy as sa
import structlog
from cryptography.fernet import InvalidToken

from app import crypto, db, events
from app.accounts import pii
from app.accounts import service as accounts
from app.accounts.models import SYSTEM_ACCOUNT_ID, Account
from app.auth import principal as principals
from app.auth.principal import OTHER_ACCOUNT, Principal
from app.context import tenancy
from app.db import errors
from app.errors import Forbidden, InvalidValues, NotFound, problem
from app.sso import providers, validation
from app.sso.connections import Connection, has_custom_endpoints
from app.sso.models import OAUTH, SAML, ProviderSetting
from app.sso.providers import HIDDEN, Provider
from app.types import JSONMapping, JSONObject

log = structlog.get_logger()
Body = JSONMapping
# What says nothing of who somebody is, and leads no browser anywhere.
UNTRUSTED_CHANGEABLE = ("default_role", "scopes", "name_attribute", "groups_attribute", "key_id")
NO_KEYS = "An API key cannot change how people sign in."
CHANGEABLE = ("display_name", "enabled", "priority", "shared_callback")
TAKEN = "This provider is set up already at this level."


def page(
    skip: int, limit: int, *, by: Principal, account: str | None = None, category: str | None = None
) -> tuple[list[ProviderSetting], int]:
    """The settings of a level, by category and name, and how many there are."""
    where = [ProviderSetting.account_id == resolve_account(account, by)]
    if category:
        where.append(ProviderSetting.category == category)
    counted = sa.select(sa.func.count()).select_from(ProviderSetting).where(*where)
    order = (ProviderSetting.priority.desc(), ProviderSetting.category, ProviderSetting.id)
    chosen = sa.select(ProviderSetting).where(*where).order_by(*order).offset(skip).limit(limit)
    return list(db.db.session.scalars(chosen)), db.db.session.scalar(counted) or 0


def get(setting_id: str, *, by: Principal) -> ProviderSetting:
    """One row of settings. Raises NotFound, also for another account's."""
    mine = (
        ProviderSetting.account_id == by.require_account_id(),
        ProviderSetting.id == setting_id.lower(),
    )
    return _found(db.db.session.scalar(sa.select(ProviderSetting).where(*mine)))


def acting_in_account_of(setting_id: str, *, by: Principal) -> Principal:
    """The caller; a superadmin who names no account acts in that of the row. Raises NotFound."""
    if not by.may_act_elsewhere or by.account_id != SYSTEM_ACCOUNT_ID:
        return by
    chosen = sa.select(ProviderSetting.account_id).where(ProviderSetting.id == setting_id.lower())
    with tenancy.across_accounts():
        account_ids = db.db.session.scalars(chosen.limit(2)).all()
    if len(account_ids) != 1:  # ids of several rows may be alike where accounts were copied
        return by
    account = principals.find_active_account(account_ids[0])
    if account is None:
        raise NotFound("There are no such settings.")
    return by.acting_in(account)


def create(body: Body, *, by: Principal) -> ProviderSetting:
    """New settings. Raises InvalidValues, Forbidden, NotFound, or Conflict for a second row."""
    by.refuse_key(NO_KEYS)
    by.require_recent_sign_in()
    account_id = resolve_account(body.get("account_id"), by)
    try:
        provider = providers.get(body["category"], body["provider_name"])
    except NotFound as error:
        unknown = problem("provider_name", "invalid_option", error.message)
        raise InvalidValues([unknown]) from None
    enabled = body.get("enabled", True)
    config, found = validation.validate(provider, body["config"], complete=enabled)
    shared = bool(body.get("shared_callback"))
    found += _problems_of_sharing(provider, config, shared)
    _refuse([*_unreadable(body), *found, *_problems_of_all(account_id, config)])
    with db.transaction() as session, _one_each():
        row = ProviderSetting(
            account_id=account_id,
            category=provider.category,
            provider_name=provider.name,
            display_name=body.get("display_name") or provider.title,
            enabled=enabled,
            priority=body.get("priority", 0),
            shared_callback=shared,
            admits_pii_members=pii.is_trusted(account_id, by.user_id),
            **_split(provider, config),
        )
        session.add(row)
        session.flush()
    return row


def change(setting_id: str, body: Body, *, by: Principal) -> ProviderSetting:
    """Change settings; of `config` what is named, null takes out. Raises as `create` does."""
    by.refuse_key(NO_KEYS)
    by.require_recent_sign_in()
    row = get(setting_id, by=by)
    while True:
        # Looking names up takes its time, so no lock is held meanwhile; every change of a config
        # encrypts its secrets anew, which tells whether somebody else was faster.
        seen, changed = row.secrets, _changed(row, body)
        with db.transaction() as session:
            row = _locked(row.account_id, row.id)
            if "config" not in body or row.secrets == seen:
                _settle_trust(row, changed, body, by)
                for name, value in changed.items():
                    setattr(row, name, value)
                session.flush()
                return row


def delete(setting_id: str, *, by: Principal) -> None:
    """Remove settings: nobody signs in by them any more. Raises NotFound."""
    by.refuse_key(NO_KEYS)
    by.require_recent_sign_in()
    row = get(setting_id, by=by)
    with db.transaction() as session:
        session.delete(_locked(row.account_id, row.id))


def _settle_trust(row: ProviderSetting, changed: Body, body: Body, by: Principal) -> None:
    trusted = pii.is_trusted(row.account_id, by.user_id)
    if "config" in changed and not trusted and _points(row.config) != _points(changed["config"]):
        row.admits_pii_members = False
    wanted = body.get("admits_pii_members")
    if wanted and not trusted:
        raise Forbidden(pii.ONLY_MEMBERS)
    if wanted is not None:
        row.admits_pii_members = wanted


def _points(config: Body) -> JSONObject:
    return {name: value for name, value in config.items() if name not in UNTRUSTED_CHANGEABLE}


def _changed(row: ProviderSetting, body: Body) -> JSONObject:
    changed = {name: body[name] for name in CHANGEABLE if name in body}
    unreadable = _unreadable(body)
    provider, enabled = provider_of(row), changed.get("enabled", row.enabled)
    shared = bool(body.get("shared_callback"))
    if "config" not in body:
        missing = _missing(row) if enabled and not row.enabled else ()
        _refuse([*unreadable, *missing, *_problems_of_sharing(provider, row.config, shared)])
        return changed
    whole = merge_config(row, body["config"])
    config, found = validation.validate(provider, whole, row.config, complete=enabled)
    found += _problems_of_sharing(provider, config, shared)
    _refuse([*unreadable, *found, *_problems_of_all(row.account_id, config)])
    return changed | _split(provider, config)


def _missing(row: ProviderSetting) -> list[validation.Problem]:
    return validation.missing(provider_of(row), {**row.config, **_secrets(row)})


def _locked(account_id: str, setting_id: str) -> ProviderSetting:
    mine = (ProviderSetting.account_id == account_id, ProviderSetting.id == setting_id)
    locked = sa.select(ProviderSetting).where(*mine).with_for_update()
    return _found(db.db.session.scalar(locked.execution_options(populate_existing=True)))


def _found(row: ProviderSetting | None) -> ProviderSetting:
    if row is None:
        raise NotFound("There are no such settings.")
    return row


def merge_config(row: ProviderSetting, given: Body) -> JSONObject:
    """The whole config of a row with what is given in it; a secret shown as such stays."""
    # Whoever moves the address must know the secret that is sent there.
    moved = "token_url" in given and _address(given) != _address(row.config)
    kept = {**row.config, **({} if moved else _secrets(row))}
    if given.get("idp_metadata"):
        kept = {n: v for n, v in kept.items() if n not in ("idp_sso_url", "idp_x509_cert")}
    shown = {name for name in provider_of(row).secrets if given.get(name) == HIDDEN}
    return {**kept, **{name: value for name, value in given.items() if name not in shown}}


def _address(config: Body) -> str:
    return str(config.get("token_url") or "").strip()


def mask_secrets(row: ProviderSetting) -> JSONObject:
    """The config as people see it: of secrets only whether they are set."""
    kept = _secrets(row)
    return {
        **row.config,
        **{name: HIDDEN if kept.get(name) else None for name in provider_of(row).secrets},
    }


def provider_of(row: ProviderSetting) -> Provider:
    """The provider that a row is of."""
    return providers.get(row.category, row.provider_name)


def connection(
    account: Account | None, category: str, name: str, *, tried: bool = False
) -> Connection:
    """How people of an account sign in by a provider. Raises NotFound where they do not.

    `tried`: also by settings of the account that are not enabled yet.
    """
    provider = providers.get(category, name)
    row = _effective(account.id, provider, tried) if account else None
    if account is None or row is None or not account.is_active:
        raise NotFound("This account has no such sign-in.")
    secrets = _secrets(row)
    if not secrets.keys() >= set(provider.secrets):
        raise NotFound("This sign-in misses its secret. An admin of the account can send it anew.")
    if validation.missing(provider, {**row.config, **secrets}):
        raise NotFound("The settings of this sign-in are not complete.")
    is_own = row.account_id == account.id
    return Connection(
        account,
        provider,
        {**row.config, **secrets},
        is_own,
        row_id=row.id,
        shared_callback=row.shared_callback,
        # The system's settings are the operator's: they count as such in every other account.
        admits_pii_members=row.admits_pii_members is not False or not is_own,
    )


def as_service_provider(account: Account | None, name: str) -> Connection:
    """What of a SAML row our metadata tells, complete or not, enabled or not. Raises NotFound.

    A provider may want our metadata before it gives us its own.
    """
    provider = providers.get(SAML, name)
    row = _row(account.id, provider) if account else None
    if account is None or row is None or not account.is_active:
        raise NotFound("This account has no such sign-in.")
    return Connection(account, provider, row.config, row.account_id == account.id)


def canonical_name(category: str, name: str) -> str:
    """A provider's own name, where it goes by several. Raises NotFound."""
    return providers.get(category, name).name


def list_for_sign_in(reference: str | None) -> tuple[Account | None, list[ProviderSetting]]:
    """What the sign-in page of an account offers: own rows instead of the system's, by priority."""
    account = find_active_account(reference)
    if account is None:
        return None, []
    levels = [account.id, SYSTEM_ACCOUNT_ID]
    order = (ProviderSetting.priority.desc(), ProviderSetting.id)
    chosen = sa.select(ProviderSetting).where(ProviderSetting.account_id.in_(levels))
    with tenancy.across_accounts():
        rows = list(db.db.session.scalars(chosen.where(ProviderSetting.enabled).order_by(*order)))
    rows.sort(key=lambda row: row.account_id != account.id)
    kept = {(row.category, row.provider_name): row for row in reversed(rows)}
    return account, sorted(kept.values(), key=lambda row: (-row.priority, row.id))


def any_enabled() -> bool:
    """Whether anybody at all may sign in by a provider."""
    enabled = sa.select(ProviderSetting.id).where(ProviderSetting.enabled).limit(1)
    with tenancy.across_accounts():
        return db.db.session.scalar(enabled) is not None


def find_active_account(reference: str | None) -> Account | None:
    """The active account that a slug, code or id names, read anew."""
    if not reference:
        return None
    found = principals.find_account(reference)
    return found if found and found.is_active else None


def resolve_account(named: str | None, by: Principal) -> str:
    """The account whose settings are meant. Raises Forbidden for another's, or NotFound."""
    if named is None:
        return by.require_account_id()
    account = find_active_account(named)
    if not by.may_act_elsewhere and (account is None or account.id != by.account_id):
        raise Forbidden(OTHER_ACCOUNT)
    if account is None:
        raise NotFound("There is no such account.")
    return account.id


def _effective(account_id: str, provider: Provider, tried: bool) -> ProviderSetting | None:
    own = sa.and_(sa.literal(tried), ProviderSetting.account_id == account_id)
    return _row(account_id, provider, sa.or_(ProviderSetting.enabled, own))


def _row(account_id: str, provider: Provider, *where: Any) -> ProviderSetting | None:
    levels = [account_id, SYSTEM_ACCOUNT_ID]
    own_first = sa.case((ProviderSetting.account_id == account_id, 0), else_=1)
    chosen = sa.select(ProviderSetting).where(
        ProviderSetting.account_id.in_(levels),
        ProviderSetting.category == provider.category,
        ProviderSetting.provider_name == provider.name,
        *where,
    )
    with tenancy.across_accounts():
        return db.db.session.scalar(chosen.order_by(own_first).limit(1))


def _split(provider: Provider, config: JSONMapping) -> JSONObject:
    secrets = {name: config[name] for name in provider.secrets if name in config}
    told = {name: value for name, value in config.items() if name not in secrets}
    return {"config": told, "secrets": crypto.encrypt(orjson.dumps(secrets).decode())}


def _secrets(row: ProviderSetting) -> JSONObject:
    try:
        found: JSONObject = orjson.loads(crypto.decrypt(row.secrets))
    except InvalidToken:  # encrypted with a key that the settings do not name any more
        log.error("secrets cannot be read", account=row.account_id, provider=row.provider_name)
        return {}
    return found


def _one_each() -> Any:
    return errors.conflict_on_unique("provider_settings", "provider_name", "provider_name", TAKEN)


def _problems_of_all(account_id: str, config: Body) -> list[validation.Problem]:
    if account_id != SYSTEM_ACCOUNT_ID or not config.get("allow_idp_initiated"):
        return []
    message = "An account allows this for itself, with settings of its own."
    return [problem("config.allow_idp_initiated", "invalid_option", message)]


def _problems_of_sharing(
    provider: Provider, config: Body, shared: bool
) -> list[validation.Problem]:
    if not shared or (provider.category == OAUTH and not has_custom_endpoints(config)):
        return []
    message = "Only a provider with its usual endpoints can share the redirect address."
    return [problem("shared_callback", "invalid_option", message)]


def _unreadable(body: Body) -> list[validation.Problem]:
    # It is what the button on the page to sign in says.
    name = body.get("display_name")
    wrong = None if name is None else accounts.label_problem(name, "display_name")
    return [wrong] if wrong else []


def _refuse(found: list[validation.Problem]) -> None:
    if found:
        raise InvalidValues(found)


@events.subscribe(events.AccountClosed)
def _remove(event: events.AccountClosed) -> None:
    table: Any = ProviderSetting.__table__
    db.connection().execute(sa.delete(table).where(table.c.account_id == event.account_id))
