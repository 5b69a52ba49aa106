"""Refreshes the metadata of identity providers from their URLs, daily and on request.

New certificates and addresses are taken as they are: the document is fetched by TLS, which proves
who wrote it. The entity id never changes by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta

import sqlalchemy as sa
import structlog

from app import clock, crypto, db, jobs
from app.auth.principal import Principal
from app.context import tenancy
from app.errors import NotFound
from app.outbound import web_waits
from app.sso import service, validation
from app.sso.models import SAML, MetadataRefresh, ProviderSetting
from app.sso.saml import certificates
from app.types import JSONMapping, JSONObject

log = structlog.get_logger()
INTERVAL = timedelta(days=1)
BATCH = 20
LONGEST_ERROR = 300


def find(setting: ProviderSetting) -> MetadataRefresh | None:
    """Return the result of the last refresh; None before the first one."""
    key = (setting.account_id, setting.id)
    return db.db.session.get(MetadataRefresh, key, populate_existing=True)


def refresh(setting_id: str, *, by: Principal) -> MetadataRefresh | None:
    """Refresh a provider's metadata now; None if it has no metadata URL. Raises NotFound."""
    by.require_recent_sign_in()
    setting = service.get(setting_id, by=by)
    if not setting.config.get("metadata_url"):
        return None
    key = (setting.account_id, setting.id)
    _fetch_and_store(setting)
    return db.db.session.get_one(MetadataRefresh, key, populate_existing=True)


@jobs.periodic(900, "sso.read_metadata")
def refresh_due(payload: Mapping[str, object]) -> None:
    """Refresh the metadata of enabled providers whose last refresh is a day ago."""
    same_setting = sa.and_(
        MetadataRefresh.account_id == ProviderSetting.account_id,
        MetadataRefresh.setting_id == ProviderSetting.id,
    )
    is_due = sa.or_(
        MetadataRefresh.read_at.is_(None), MetadataRefresh.read_at <= clock.now() - INTERVAL
    )
    query = (
        sa.select(ProviderSetting.account_id, ProviderSetting.id)
        .outerjoin(MetadataRefresh, same_setting)
        .where(
            ProviderSetting.category == SAML,
            ProviderSetting.enabled,
            ProviderSetting.config["metadata_url"].as_string().is_not(None),
            is_due,
        )
        .order_by(MetadataRefresh.read_at, ProviderSetting.id)
        .limit(BATCH)
    )
    with tenancy.across_accounts():
        keys = db.db.session.execute(query).all()
    for account_id, id in keys:
        with tenancy.in_account(account_id), suppress(NotFound):  # deleted during the request
            setting = db.db.session.get(ProviderSetting, (account_id, id), populate_existing=True)
            if setting is not None and setting.config.get("metadata_url"):
                _fetch_and_store(setting)


def _fetch_and_store(setting: ProviderSetting) -> None:
    from app.sso.saml import metadata  # imported on use: large

    account_id, id, requested = setting.account_id, setting.id, setting.config
    error, fetched = None, JSONObject()
    db.db.session.rollback()  # hold no connection during the request
    try:
        with web_waits.place_or_429(account_id):
            fetched = metadata.fetch(
                requested["metadata_url"],
                validation.request_rules(),
                requested.get("idp_entity_id"),
            )
    except metadata.InvalidMetadata as problem:
        error = str(problem)[:LONGEST_ERROR]
        log.warning("metadata not read", account=account_id, setting=id, error=error)
    with db.transaction() as session:
        stored = service.lock(account_id, id)
        asked_by = ("metadata_url", "idp_entity_id")
        if any(stored.config.get(name) != requested.get(name) for name in asked_by):
            return  # an admin chose another provider during the request
        result = session.get(MetadataRefresh, (account_id, id))
        if result is None:
            result = MetadataRefresh(
                account_id=account_id, setting_id=id, changed_at=None, changes=[]
            )
            session.add(result)
        result.read_at, result.error = clock.now(), error
        if changes := _differences(stored.config, fetched):
            stored.config = {**stored.config, **fetched}
            # SAML has no secrets, but `service.change` notices by their ciphertext that somebody
            # else has changed the config.
            stored.secrets = crypto.encrypt("{}")
            result.changed_at, result.changes = result.read_at, changes
        session.flush()


def _differences(config: JSONMapping, fetched: JSONMapping) -> list[JSONObject]:
    """Return what the metadata changes: `{name, removed, added}` of each setting, described."""
    changes = []
    for name, value in fetched.items():
        old, new = _describe(config.get(name)), _describe(value)
        if set(old) != set(new):  # the order of certificates does not matter
            removed = [text for text in old if text not in new]
            added = [text for text in new if text not in old]
            changes.append({"name": name, "removed": removed, "added": added})
    return changes


def _describe(value: object) -> list[str]:
    """Describe a setting for admins: certificates by name and fingerprint, other values as text."""
    if isinstance(value, list):
        return [certificates.describe(certificate) for certificate in value]
    return [str(value)] if value else []
