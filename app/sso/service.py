"""Provider settings: the account's own, else the system's."""

from __future__ import annotations

from types import MappingProxyType
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
from app.errors import Conflict, Forbidden, InvalidValues, NotFound, problem
from app.ids import new_id
from app.outbound import web_waits
from app.sso import providers, validation
from app.sso.connections import Connection, has_custom_endpoints
from app.sso.models import OAUTH, SAML, ProviderSetting
from app.sso.oauth import discovery
from app.sso.providers import HIDDEN, Provider
from app.types import JSONMapping, JSONObject

log = structlog.get_logger()
Body = JSONMapping
# Settings that affect neither identities nor redirects.
UNTRUSTED_CHANGEABLE = (
    *("default_role", "scopes", "name_attribute", "groups_attribute", "groups_claim", "key_id"),
    *("prompt", "acr_values"),
)
ENTERED_THERE = "A template has no secrets: disable this provider, and enter this in each account."
NO_KEYS = "API keys cannot change sign-in settings."
CHANGEABLE = ("display_name", "enabled", "priority", "shared_callback")
MAX_PROVIDERS = 50  # each is a button on the sign-in page
ALREADY_CONFIGURED = "This provider is already set up at this level."


def page(
    skip: int, limit: int, *, by: Principal, account: str | None = None, category: str | None = None
) -> tuple[list[ProviderSetting], int]:
    """Return a page of the settings of an account or the system, and their number."""
    conditions = [ProviderSetting.account_id == resolve_account(account, by)]
    if category:
        conditions.append(ProviderSetting.category == category)
    count = sa.select(sa.func.count()).select_from(ProviderSetting).where(*conditions)
    order = (ProviderSetting.priority.desc(), ProviderSetting.category, ProviderSetting.id)
    query = sa.select(ProviderSetting).where(*conditions).order_by(*order).offset(skip).limit(limit)
    return list(db.db.session.scalars(query)), db.db.session.scalar(count) or 0


def get(setting_id: str, *, by: Principal) -> ProviderSetting:
    """Return settings. Raises NotFound, also for another account's."""
    conditions = (
        ProviderSetting.account_id == by.require_account_id(),
        ProviderSetting.id == setting_id.lower(),
    )
    return _require(db.db.session.scalar(sa.select(ProviderSetting).where(*conditions)))


def act_in_account_of(setting_id: str, *, by: Principal) -> Principal:
    """Return the caller; superadmins act in the account of the settings. Raises NotFound."""
    if not by.may_act_elsewhere or by.account_id != SYSTEM_ACCOUNT_ID:
        return by
    query = sa.select(ProviderSetting.account_id).where(ProviderSetting.id == setting_id.lower())
    with tenancy.across_accounts():
        account_ids = db.db.session.scalars(query.limit(2)).all()
    if len(account_ids) != 1:  # copied accounts may share ids
        return by
    account = principals.find_active_account(account_ids[0])
    if account is None:
        raise NotFound("There are no such settings.")
    return by.acting_in(account)


def create(body: Body, *, by: Principal) -> ProviderSetting:
    """Create settings. Raises InvalidValues, Forbidden, NotFound, or Conflict if they exist."""
    by.refuse_key(NO_KEYS)
    by.require_recent_sign_in()
    account_id = resolve_account(body.get("account_id"), by)
    provider, config = _cleaned(body, account_id)
    enabled, shared = body.get("enabled", True), bool(body.get("shared_callback"))
    field = "slug" if provider.discovers else "provider_name"
    unique = ("provider_settings", "provider_name", field, ALREADY_CONFIGURED)
    with db.transaction() as session, errors.conflict_on_unique(*unique):
        count = sa.select(sa.func.count()).where(ProviderSetting.account_id == account_id)
        if (session.scalar(count) or 0) >= MAX_PROVIDERS:
            message = f"An account may have at most {MAX_PROVIDERS} providers."
            raise Conflict(message, error="limit_reached")
        row = ProviderSetting(
            account_id=account_id,
            category=provider.category,
            provider_name=provider.name,
            kind=provider.kind if provider.discovers else None,
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


def check(body: Body) -> None:
    """Check settings for an account that does not exist yet. Raises InvalidValues."""
    if "config" not in body:
        raise InvalidValues([problem("config", "required", "A new provider needs this.")])
    provider, config = _cleaned(body, new_id())
    given = [name for name in provider.secrets if config.get(name)]
    _raise_problems(
        [problem(f"config.{one}", "secret_in_template", ENTERED_THERE) for one in given]
    )


def _cleaned(body: Body, account_id: str) -> tuple[Provider, JSONObject]:
    """Return the provider of new settings, and its config. Raises InvalidValues."""
    try:
        provider = requested_provider(body)
    except NotFound as error:
        unknown = problem("provider_name", "invalid_option", error.message)
        raise InvalidValues([unknown]) from None
    enabled, shared = body.get("enabled", True), bool(body.get("shared_callback"))
    config, problems = validation.validate(provider, body["config"], complete=enabled)
    problems += _sharing_problems(provider, config, shared)
    problems += issuer_problems(account_id, provider, config) if enabled else []
    problems += [*_slug_problems(body), *_system_wide_problems(account_id, config)]
    _raise_problems([*_name_problems(body), *problems])
    return provider, config


def requested_provider(body: Body) -> Provider:
    """Return the provider that new settings name, with their slug. Raises NotFound."""
    provider = providers.get(body["category"], body["provider_name"])
    return provider.named(body.get("slug") or provider.name) if provider.discovers else provider


def _slug_problems(body: Body) -> list[validation.Problem]:
    slug, provider = body.get("slug"), requested_provider(body)
    if slug is None or (slug == body["provider_name"] and not provider.discovers):
        return []
    message = "Only providers of the kind oidc have a slug of their own."
    invalid = providers.slug_problem(slug) if provider.discovers else message
    return [problem("slug", "pattern_mismatch", invalid)] if invalid else []


def issuer_problems(
    account_id: str, provider: Provider, config: Body, saved: Body = MappingProxyType({})
) -> list[validation.Problem]:
    """Read what a new issuer publishes, unless a transaction would wait for it."""
    issuer = str(config.get("issuer") or "")
    is_known = issuer in ("", saved.get("issuer"))
    if not provider.discovers or is_known or db.in_transaction():
        return []
    with web_waits.place_or_429():
        return discovery.problems(issuer, account_id)


def change(setting_id: str, body: Body, *, by: Principal) -> ProviderSetting:
    """Change settings; in `config` only given properties, null removes one. Raises as `create`."""
    by.refuse_key(NO_KEYS)
    by.require_recent_sign_in()
    row = get(setting_id, by=by)
    while True:
        # Validation may do slow DNS look-ups, so it holds no lock. Every change of a config
        # re-encrypts its secrets, so comparing them detects concurrent changes.
        secrets_before, changes = row.secrets, _changed_values(row, body)
        with db.transaction() as session:
            row = lock(row.account_id, row.id)
            if "config" not in body or row.secrets == secrets_before:
                is_trusted = pii.is_trusted(row.account_id, by.user_id)
                before, after = row.config, changes.get("config", row.config)
                if not is_trusted and _trust_relevant(before) != _trust_relevant(after):
                    row.admits_pii_members = False
                admits = body.get("admits_pii_members")
                if admits and not is_trusted:
                    raise Forbidden(pii.ONLY_MEMBERS)
                if admits is not None:
                    row.admits_pii_members = admits
                for name, value in changes.items():
                    setattr(row, name, value)
                session.flush()
                return row


def delete(setting_id: str, *, by: Principal) -> None:
    """Delete settings. Raises NotFound."""
    by.refuse_key(NO_KEYS)
    by.require_recent_sign_in()
    row = get(setting_id, by=by)
    with db.transaction() as session:
        session.delete(lock(row.account_id, row.id))


def _trust_relevant(config: Body) -> JSONObject:
    """Return the settings that decide whom a provider can sign in as, and where."""
    return {name: value for name, value in config.items() if name not in UNTRUSTED_CHANGEABLE}


def _changed_values(row: ProviderSetting, body: Body) -> JSONObject:
    changes = {name: body[name] for name in CHANGEABLE if name in body}
    unreadable = _name_problems(body)
    provider, enabled = get_provider(row), changes.get("enabled", row.enabled)
    shared = bool(body.get("shared_callback"))
    if "config" not in body:
        missing = []
        if enabled and not row.enabled:
            missing = validation.missing(provider, {**row.config, **_secrets(row)})
            missing += issuer_problems(row.account_id, provider, row.config)
        _raise_problems([*unreadable, *missing, *_sharing_problems(provider, row.config, shared)])
        return changes
    merged = merge_config(row, body["config"])
    config, problems = validation.validate(provider, merged, row.config, complete=enabled)
    problems += _sharing_problems(provider, config, shared)
    if enabled:
        known = row.config if row.enabled else {}
        problems += issuer_problems(row.account_id, provider, config, known)
    _raise_problems([*unreadable, *problems, *_system_wide_problems(row.account_id, config)])
    return changes | _split(provider, config)


def lock(account_id: str, setting_id: str) -> ProviderSetting:
    """Return locked settings, in the open transaction. Raises NotFound."""
    conditions = (ProviderSetting.account_id == account_id, ProviderSetting.id == setting_id)
    query = sa.select(ProviderSetting).where(*conditions).with_for_update()
    return _require(db.db.session.scalar(query.execution_options(populate_existing=True)))


def _require(row: ProviderSetting | None) -> ProviderSetting:
    if row is None:
        raise NotFound("There are no such settings.")
    return row


def merge_config(row: ProviderSetting, changes: Body) -> JSONObject:
    """Merge changes into the config of a row; secrets sent as `***` stay."""
    # Whoever changes the token address must know the secret that is sent there.
    target = "issuer" if get_provider(row).discovers else "token_url"
    moved_token = target in changes and _address(changes, target) != _address(row.config, target)
    saved = {**row.config, **({} if moved_token else _secrets(row))}
    moved = changes.get("metadata_url") not in (None, "", row.config.get("metadata_url"))
    if changes.get("idp_metadata") or moved:
        saved = {n: v for n, v in saved.items() if n not in ("idp_sso_url", "idp_x509_cert")}
    masked = {name for name in get_provider(row).secrets if changes.get(name) == HIDDEN}
    return {**saved, **{name: value for name, value in changes.items() if name not in masked}}


def _address(config: Body, name: str) -> str:
    return str(config.get(name) or "").strip()


def mask_secrets(row: ProviderSetting) -> JSONObject:
    """Return the config with `***` for secrets that are set."""
    secrets = _secrets(row)
    return {
        **row.config,
        **{name: HIDDEN if secrets.get(name) else None for name in get_provider(row).secrets},
    }


def stored_secrets(row: ProviderSetting) -> set[str]:
    """Return the names of the secrets that are set."""
    return {name for name, value in _secrets(row).items() if value}


def get_provider(row: ProviderSetting) -> Provider:
    """Return the provider of a row."""
    return providers.of_settings(row.category, row.provider_name, row.kind)


def connection(
    account: Account | None, category: str, name: str, *, include_disabled: bool = False
) -> Connection:
    """Return the settings with which an account's users sign in. Raises NotFound.

    `include_disabled`: also the account's own settings that are not enabled yet.
    """
    name = canonical_name(category, name)
    row = None
    if account is not None:
        own = sa.and_(sa.literal(include_disabled), ProviderSetting.account_id == account.id)
        row = _row(account.id, category, name, sa.or_(ProviderSetting.enabled, own))
    if account is None or row is None or not account.is_active:
        raise NotFound("This account has no such sign-in.")
    provider, secrets = get_provider(row), _secrets(row)
    if not secrets.keys() >= set(provider.secrets):
        raise NotFound(
            "This sign-in lacks its secret. An administrator of the account must enter it again."
        )
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
        # The operator's settings are trusted in all accounts.
        admits_pii_members=row.admits_pii_members is not False or not is_own,
    )


def as_service_provider(account: Account | None, name: str) -> Connection:
    """Return the settings for our SAML metadata, even if incomplete or disabled. Raises NotFound.

    A provider may need our metadata before it gives us its own.
    """
    provider = providers.get(SAML, name)
    row = _row(account.id, SAML, provider.name) if account else None
    if account is None or row is None or not account.is_active:
        raise NotFound("This account has no such sign-in.")
    return Connection(account, provider, row.config, row.account_id == account.id)


def canonical_name(category: str, name: str) -> str:
    """Resolve the aliases of a provider's name; slugs stay. Raises NotFound."""
    return name if _is_slug(category, name) else providers.get(category, name).name


def title(account: Account | None, category: str, name: str) -> str:
    """Return a provider's name for people who sign in to an account. Raises NotFound."""
    if not _is_slug(category, name):
        return providers.get(category, name).title
    row = _row(account.id, category, name, ProviderSetting.enabled) if account else None
    return _require(row).display_name


def _is_slug(category: str, name: str) -> bool:
    return category == OAUTH and providers.slug_problem(name) is None


def list_for_sign_in(reference: str | None) -> list[ProviderSetting]:
    """Return the settings that users of an account sign in with; none for an unknown account."""
    account = find_active_account(reference)
    return list_enabled(account) if account else []


def list_enabled(account: Account) -> list[ProviderSetting]:
    """Return the enabled settings of an account by priority; its own replace the system's."""
    levels = [account.id, SYSTEM_ACCOUNT_ID]
    order = (ProviderSetting.priority.desc(), ProviderSetting.id)
    query = sa.select(ProviderSetting).where(ProviderSetting.account_id.in_(levels))
    with tenancy.across_accounts():
        rows = list(db.db.session.scalars(query.where(ProviderSetting.enabled).order_by(*order)))
    rows.sort(key=lambda row: row.account_id != account.id)
    by_provider = {(row.category, row.provider_name): row for row in reversed(rows)}
    return sorted(by_provider.values(), key=lambda row: (-row.priority, row.id))


def has_enabled() -> bool:
    """Whether any account has an enabled provider."""
    enabled = sa.select(ProviderSetting.id).where(ProviderSetting.enabled).limit(1)
    with tenancy.across_accounts():
        return db.db.session.scalar(enabled) is not None


def find_active_account(reference: str | None) -> Account | None:
    """Find an active account by slug, code or id, bypassing caches."""
    if not reference:
        return None
    account = principals.find_account(reference)
    return account if account and account.is_active else None


def resolve_account(reference: str | None, by: Principal) -> str:
    """Return the id of the account to act on. Raises Forbidden for another's, or NotFound."""
    if reference is None:
        return by.require_account_id()
    account = find_active_account(reference)
    if not by.may_act_elsewhere and (account is None or account.id != by.account_id):
        raise Forbidden(OTHER_ACCOUNT)
    if account is None:
        raise NotFound("There is no such account.")
    return account.id


def _row(account_id: str, category: str, name: str, *conditions: Any) -> ProviderSetting | None:
    levels = [account_id, SYSTEM_ACCOUNT_ID]
    order = sa.case((ProviderSetting.account_id == account_id, 0), else_=1)
    query = sa.select(ProviderSetting).where(
        ProviderSetting.account_id.in_(levels),
        ProviderSetting.category == category,
        ProviderSetting.provider_name == name,
        *conditions,
    )
    with tenancy.across_accounts():
        return db.db.session.scalar(query.order_by(order).limit(1))


def _split(provider: Provider, config: JSONMapping) -> JSONObject:
    secrets = {name: config[name] for name in provider.secrets if name in config}
    plain = {name: value for name, value in config.items() if name not in secrets}
    return {"config": plain, "secrets": crypto.encrypt(orjson.dumps(secrets).decode())}


def _secrets(row: ProviderSetting) -> JSONObject:
    try:
        secrets: JSONObject = orjson.loads(crypto.decrypt(row.secrets))
    except InvalidToken:  # its key was removed from the settings
        log.error("secrets cannot be read", account=row.account_id, provider=row.provider_name)
        return {}
    return secrets


def _system_wide_problems(account_id: str, config: Body) -> list[validation.Problem]:
    if account_id != SYSTEM_ACCOUNT_ID or not config.get("allow_idp_initiated"):
        return []
    message = "Only an account can allow this, in its own settings."
    return [problem("config.allow_idp_initiated", "invalid_option", message)]


def _sharing_problems(provider: Provider, config: Body, shared: bool) -> list[validation.Problem]:
    if not shared or (provider.category == OAUTH and not has_custom_endpoints(config)):
        return []
    message = "Only a provider with its default endpoints can share the redirect address."
    return [problem("shared_callback", "invalid_option", message)]


def _name_problems(body: Body) -> list[validation.Problem]:
    # The label of the button on the sign-in page.
    name = body.get("display_name")
    invalid = None if name is None else accounts.label_problem(name, "display_name")
    return [invalid] if invalid else []


def _raise_problems(problems: list[validation.Problem]) -> None:
    if problems:
        raise InvalidValues(problems)


@events.subscribe(events.AccountClosed)
def _remove(event: events.AccountClosed) -> None:
    table: Any = ProviderSetting.__table__
    db.connection().execute(sa.delete(table).where(table.c.account_id == event.account_id))
