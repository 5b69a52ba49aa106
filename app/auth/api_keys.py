"""API keys, which act as their creator in that user's account only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import sqlalchemy as sa

from app import clock, db, events
from app.accounts import service as accounts
from app.accounts.models import PII_GROUP, Account
from app.accounts.types import Body, Condition
from app.auth import key_scopes, last_use, owners, sessions, tokens
from app.auth import principal as principals
from app.auth.models import ApiKey
from app.auth.principal import Principal
from app.context import tenancy
from app.db import counts, errors, versioned_cache
from app.db.versioned_cache import VersionCheck
from app.errors import Conflict, Forbidden, InvalidValues, NotFound, Unauthorized, problem
from app.ids import new_id

PREFIX = "svc_sk_"
RANDOM_CHARACTERS = 32
PATTERN = re.compile(rf"{PREFIX}([A-Z]{{2}}[0-9]{{4}})_[A-Za-z0-9]{{{RANDOM_CHARACTERS}}}")
HINT_CHARACTERS = 4  # of 32 random ones
OWN_OPERATOR_KEY = "Operator keys act as whoever makes them."
OTHER_ADDRESS = "address_not_allowed"


@dataclass
class CachedKey:
    """The cached part of a key, with the last principal derived from it."""

    id: str
    name: str
    account_id: str
    user_id: str
    scopes: Mapping[str, Sequence[str]] | None
    operator_scopes: frozenset[str] | None
    expires_at: datetime | None
    read_only: bool
    networks: Sequence[IPv4Network | IPv6Network]
    """The networks that it may be used from; empty: any."""
    version_check: VersionCheck
    _last: tuple[Principal | None, Principal | None] = field(default=(None, None), repr=False)

    def principal_for(self, owner: Principal) -> Principal:
        """The owner restricted to the key's scopes; the same object for the same owner."""
        last_owner, caller = self._last
        if caller is None or last_owner is not owner:
            caller = replace(
                owner,
                api_key_id=self.id,
                api_key_name=self.name,
                key_expires_at=self.expires_at.timestamp() if self.expires_at else None,
                scopes=self.scopes,
                operator_scopes=self.operator_scopes,
                # An operator key never sees by this membership what its maker sees.
                groups=owner.groups - {PII_GROUP} if self.operator_scopes else owner.groups,
                read_only=self.read_only,
                key_check=self.version_check,
            )
            self._last = owner, caller
        return caller


def create(body: Body, *, by: Principal, id: str | None = None) -> tuple[ApiKey, str]:
    """Create a key of the caller, or as an admin one of a service user; returns it with its secret.

    The secret cannot be retrieved again. Raises InvalidValues, Forbidden, or Conflict for an
    existing `id`.
    """
    by.require_recent_sign_in()
    by.refuse_portal_of_another()
    by.require_account_id()
    if isinstance(body.get("scopes"), list) and not by.is_superadmin:
        raise Forbidden("Only superadmins may make operator keys.", error="superadmin_required")
    name = accounts.label(body["name"])
    if body.get("expires_at") and body["expires_at"] <= clock.now():
        expired = problem("expires_at", "invalid_datetime", "Must be in the future.")
        raise InvalidValues([expired])
    account, user_id = by.home_and_user()
    owner_id = (body.get("user_id") or user_id).lower()
    if owner_id != user_id:
        if not by.is_admin or by.account is None:
            raise Forbidden("Only admins may make keys of service users.")
        if isinstance(body.get("scopes"), list):
            raise InvalidValues([problem("user_id", "invalid_option", OWN_OPERATOR_KEY)])
        account = by.account
        owners.require_service_user(account.id, owner_id, by=by, field="user_id")
    secret = new_secret(account.account_code)
    unique_id = errors.conflict_on_unique(
        "api_keys", "id", "id", "A key with this id already exists."
    )
    with unique_id, db.transaction() as session:
        sessions.lock_user(by)
        key = ApiKey(
            account_id=account.id,
            id=id or new_id(),
            created_by=owner_id,
            key_hash=tokens.digest(secret),
            hint=secret[-HINT_CHARACTERS:],
            name=name,
            description=body.get("description"),
            expires_at=body.get("expires_at"),
            scopes=body.get("scopes"),
            read_only=body.get("read_only", False),
            ip_addresses=networks_of(body.get("ip_addresses")),
        )
        session.add(key)
        session.flush()
    return key, secret


def new_secret(account_code: str) -> str:
    """Return a new secret."""
    return f"{PREFIX}{account_code}_{tokens.random_characters(RANDOM_CHARACTERS)}"


def networks_of(texts: Sequence[str] | None) -> list[str] | None:
    """Return addresses and networks in their usual form. Raises InvalidValues."""
    problems, found = [], []
    for text in texts or ():
        try:
            found.append(str(_network(text.strip())))
        except ValueError:
            message = f"{text} is neither an IP address nor a network such as 192.0.2.0/24."
            problems.append(problem("ip_addresses", "invalid_address", message))
    if problems:
        raise InvalidValues(problems)
    return list(dict.fromkeys(found)) or None


def page(
    skip: int,
    limit: int,
    *,
    by: Principal,
    max_total: int | None = None,
    created_by: str | None = None,
    of_operator: bool = False,
) -> tuple[list[ApiKey], int]:
    """One page of the caller's keys (for admins, the account's), newest first, and the total.

    The total is counted to `max_total` + 1 at most; `of_operator` lists operator keys alone.
    """
    visible = _visible(by)
    if created_by is not None:
        visible.append(ApiKey.created_by == created_by)
    if of_operator:
        is_list = sa.cast(ApiKey.scopes, sa.Text).startswith("[")
        visible.append(is_list)
    query = sa.select(ApiKey).where(*visible).order_by(ApiKey.id.desc())
    rows = db.db.session.scalars(query.offset(skip).limit(limit))
    return list(rows), counts.count_up_to(ApiKey, visible, max_total)


def get(key_id: str, *, by: Principal) -> ApiKey:
    """A key that the caller may see. Raises NotFound."""
    return _require(db.db.session.scalar(_select(key_id, by)))


def get_locked(key_id: str, *, by: Principal) -> ApiKey:
    """A key that the caller may see, locked. Raises NotFound, or Conflict if it is revoked."""
    by.require_account_id()
    key = _require(db.db.session.scalar(_select(key_id, by).with_for_update(of=ApiKey)))
    if key.is_revoked:
        raise Conflict("This key is already revoked.")
    return key


def revoke(key_id: str, *, by: Principal) -> ApiKey:
    """Revoke a key, which stops working at once. Raises NotFound or Conflict."""
    with db.transaction() as session:
        key = get_locked(key_id, by=by)  # of two concurrent revocations, one gets the Conflict
        key.revoked_by = by.user_id
        _mark_revoked(key)
        session.flush()
        return key


def list_active(account_id: str, user_id: str) -> list[ApiKey]:
    """A user's active keys, by name."""
    query = sa.select(ApiKey).where(*_unrevoked(account_id, user_id)).order_by(ApiKey.name)
    return [key for key in db.db.session.scalars(query) if key.is_active]


def count_active(account_id: str, user_id: str, limit: int) -> int:
    """The number of a user's active keys; stops at `limit` + 1."""
    is_valid = sa.or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > clock.now())
    return counts.count_up_to(ApiKey, (*_unrevoked(account_id, user_id), is_valid), limit)


def revoke_all(account_id: str, user_id: str) -> None:
    """Revoke all keys of a user, in the user's name."""
    with db.transaction() as session:
        query = sa.select(ApiKey).where(*_unrevoked(account_id, user_id))
        for key in session.scalars(query.with_for_update(of=ApiKey)):
            key.revoked_by = user_id
            _mark_revoked(key)


@events.subscribe(events.AddressVerified)
def _on_address_proved(event: events.AddressVerified) -> None:
    for key in db.db.session.scalars(
        sa.select(ApiKey).where(*_unrevoked(event.account_id, event.user_id))
    ):
        _mark_revoked(key)


@events.subscribe(events.CollectionRenamed)
def _follow_collection(event: events.CollectionRenamed) -> None:
    is_scoped = (ApiKey.scopes.is_not(None), ~ApiKey.is_revoked)
    with tenancy.across_accounts(), db.transaction() as session:
        # Account by account, as no lock spans shards.
        concerned = sa.select(ApiKey.account_id).where(*is_scoped).distinct()
        for account_id in sorted(session.scalars(concerned)):
            query = sa.select(ApiKey).where(ApiKey.account_id == account_id, *is_scoped)
            for key in session.scalars(query.order_by(ApiKey.id).with_for_update(of=ApiKey)):
                if not isinstance(key.scopes, dict):
                    continue  # of the operator, who names no collections
                followed = key_scopes.renamed(key.scopes, event.former, event.name)
                if followed != key.scopes:
                    key.scopes = followed
                    key.version += 1
        session.flush()


def _unrevoked(account_id: str, user_id: str) -> tuple[Condition, ...]:
    return (ApiKey.account_id == account_id, ApiKey.created_by == user_id, ~ApiKey.is_revoked)


def _mark_revoked(key: ApiKey) -> None:
    # `updated_at` has no onupdate, as recording the last use is no change of the key.
    key.is_revoked, key.revoked_at = True, clock.now()
    key.updated_at = key.revoked_at
    key.version += 1


def authenticate(secret: str, address: str | None) -> Principal:
    """The principal of a key that is used from an address. Raises Unauthorized or Forbidden."""
    digest = tokens.digest(secret)
    key = versioned_cache.cache("api_keys").get(digest, lambda: _find(secret))
    principal = _principal(key)
    if key and key.networks and not _is_within(address, key.networks):
        raise Forbidden("This API key may not be used from this address.", error=OTHER_ADDRESS)
    if key is not None:
        last_use.record(ApiKey, key.account_id, key.id)
    return principal


def authenticate_by_id(account_id: str, key_id: str) -> Principal:
    """The principal of a key that was authenticated before. Raises Unauthorized."""
    own = (ApiKey.account_id == account_id, ApiKey.id == key_id)
    cache = versioned_cache.cache("api_keys")
    return _principal(cache.get((account_id, key_id), lambda: _load(*own)))


def is_valid(account_id: str, key_id: str) -> bool:
    """Whether a key is neither revoked nor expired; reads the database."""
    own = (ApiKey.account_id == account_id, ApiKey.id == key_id)
    key = db.db.session.scalar(sa.select(ApiKey).where(*own))
    return key is not None and key.is_active


def _principal(key: CachedKey | None) -> Principal:
    if key is None or (key.expires_at and key.expires_at <= clock.now()):
        raise Unauthorized("The API key is invalid.")
    owner = principals.for_user(key.account_id, key.user_id)
    if owner is None:
        raise Unauthorized("The API key is no longer valid.")
    return key.principal_for(owner)


def _find(secret: str) -> CachedKey | None:
    match = PATTERN.fullmatch(secret)
    if match is None:
        return None
    account_id = sa.select(Account.id).where(Account.account_code == match[1]).scalar_subquery()
    digest = tokens.digest(secret)
    by_secret = sa.or_(ApiKey.key_hash == digest, ApiKey.previous_hash == digest)
    return _load(ApiKey.account_id == account_id, by_secret, digest=digest)


def _network(text: str) -> IPv4Network | IPv6Network:
    """A network; that of IPv4-mapped addresses, which name callers by IPv4, as one of IPv4."""
    network = ip_network(text, strict=False)
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is None or network.prefixlen < 96:
        return network
    return IPv4Network((mapped, network.prefixlen - 96))


def _is_within(address: str | None, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    """Whether one of the networks has the address; one that is not known is in none."""
    if address is None:
        return False
    ip = ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip  # as a dual-stack socket shows IPv4
    return any(ip in network for network in networks)


def _load(*conditions: Condition, digest: str | None = None) -> CachedKey | None:
    query = sa.select(ApiKey).where(*conditions)
    with tenancy.across_accounts():
        key = db.db.session.scalar(query.execution_options(populate_existing=True))
    if key is None or key.is_revoked:
        return None
    version_check = VersionCheck("api_keys", (key.account_id, key.id), key.version)
    expires_at, networks = key.expires_at, tuple(map(_network, key.ip_addresses or ()))
    if digest is not None and digest != key.key_hash:
        assert key.previous_valid_until  # noqa: S101 - set together with the previous hash
        expires_at = min(filter(None, (expires_at, key.previous_valid_until)))
    of_records = None if isinstance(key.scopes, list) else key.scopes
    of_operator = key_scopes.of_operator(key.scopes) if isinstance(key.scopes, list) else None
    named = (key.id, key.name, key.account_id, key.created_by, of_records, of_operator)
    return CachedKey(*named, expires_at, key.read_only, networks, version_check)


def _select(key_id: str, by: Principal) -> sa.Select[ApiKey]:
    return sa.select(ApiKey).where(ApiKey.id == key_id.lower(), *_visible(by))


def _require(key: ApiKey | None) -> ApiKey:
    if key is None:
        raise NotFound("There is no such API key.")
    return key


def _visible(by: Principal) -> list[Condition]:
    if by.account_id is None:
        return []
    account: list[Condition] = [ApiKey.account_id == by.account_id]
    return account if by.is_admin else [*account, ApiKey.created_by == by.user_id]
