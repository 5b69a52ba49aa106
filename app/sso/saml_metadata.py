"""Reads the metadata of identity providers from their addresses, daily and on request.

New certificates and addresses are taken as they are: the address is fetched by TLS, which proves
who wrote them. The entity id never changes by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta

import orjson
import sqlalchemy as sa
import structlog

from app import clock, crypto, db, jobs
from app.auth.principal import Principal
from app.context import tenancy
from app.errors import NotFound
from app.outbound import web_waits
from app.sso import service, validation
from app.sso.models import SAML, MetadataRead, ProviderSetting
from app.sso.saml import certificates
from app.types import JSONObject

log = structlog.get_logger()
INTERVAL = timedelta(days=1)
BATCH = 20
LONGEST_ERROR = 300
DEFINING = ("metadata_url", "idp_entity_id")  # what a read is for


def last_read(row: ProviderSetting) -> MetadataRead | None:
    """Return the last reads of a provider's metadata, if there were any."""
    return db.db.session.get(MetadataRead, (row.account_id, row.id), populate_existing=True)


def read_now(setting_id: str, *, by: Principal) -> MetadataRead | None:
    """Read a provider's metadata, if it has a metadata URL. Raises NotFound."""
    by.require_recent_sign_in()
    row = service.get(setting_id, by=by)
    if not row.config.get("metadata_url"):
        return None
    account_id, id = row.account_id, row.id
    _read(row)
    return db.db.session.get_one(MetadataRead, (account_id, id), populate_existing=True)


@jobs.periodic(900, "sso.read_metadata")
def read_due(payload: Mapping[str, object]) -> None:
    """Read the metadata of enabled providers whose last read is a day ago."""
    same = sa.and_(
        MetadataRead.account_id == ProviderSetting.account_id,
        MetadataRead.setting_id == ProviderSetting.id,
    )
    before = clock.now() - INTERVAL
    query = (
        sa.select(ProviderSetting)
        .outerjoin(MetadataRead, same)
        .where(
            ProviderSetting.category == SAML,
            ProviderSetting.enabled,
            ProviderSetting.config["metadata_url"].as_string().is_not(None),
            sa.or_(MetadataRead.read_at.is_(None), MetadataRead.read_at <= before),
        )
        .order_by(MetadataRead.read_at, ProviderSetting.id)
    )
    with tenancy.across_accounts():
        rows = db.db.session.scalars(query.limit(BATCH)).all()
        keys = [(row.account_id, row.id) for row in rows]
    for account_id, id in keys:
        with tenancy.in_account(account_id), suppress(NotFound):  # deleted during the request
            row = db.db.session.get(ProviderSetting, (account_id, id), populate_existing=True)
            if row is not None and row.config.get("metadata_url"):
                _read(row)


def _read(row: ProviderSetting) -> None:
    account_id, id, config = row.account_id, row.id, row.config
    db.db.session.rollback()  # hold no connection during the request
    error, settings = None, JSONObject()
    from app.sso.saml import metadata  # imported on use: large

    try:
        with web_waits.place_or_429(account_id):
            settings = metadata.fetch(
                config["metadata_url"], validation.request_rules(), config.get("idp_entity_id")
            )
    except metadata.InvalidMetadata as problem:
        error = str(problem)[:LONGEST_ERROR]
        log.warning("metadata not read", account=account_id, setting=id, error=error)
    with db.transaction() as session:
        present = service.lock(account_id, id)
        if any(present.config.get(name) != config.get(name) for name in DEFINING):
            return
        read = session.get(MetadataRead, (account_id, id))
        if read is None:
            read = MetadataRead(account_id=account_id, setting_id=id, changed_at=None, changes=[])
            session.add(read)
        read.read_at, read.error = clock.now(), error
        changes = _changes(present.config, settings)
        if changes:
            # Both, as every change of a config encrypts its secrets anew; SAML has none.
            present.config = {**present.config, **settings}
            present.secrets = crypto.encrypt(orjson.dumps({}).decode())
            read.changed_at, read.changes = read.read_at, changes
        session.flush()


def _changes(before: JSONObject, settings: JSONObject) -> list[JSONObject]:
    """Describe what settings change, without the order of certificates."""
    described = ((name, _texts(before.get(name)), _texts(settings[name])) for name in settings)
    return [
        {
            "name": name,
            "removed": [text for text in old if text not in new],
            "added": [text for text in new if text not in old],
        }
        for name, old, new in described
        if set(old) != set(new)
    ]


def _texts(value: object) -> list[str]:
    if isinstance(value, list):
        return [certificates.describe(certificate) for certificate in value]
    return [str(value)] if value else []
