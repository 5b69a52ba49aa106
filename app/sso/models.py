"""Provider settings, identities, flows, seen assertions, refusals."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base
from app.db.policy import Audited, Bundled, NotAudited, NotBundled, Noun, Sample, TablePolicy
from app.db.types import Id, Text, UtcDateTime, created_at_default
from app.ids import new_id
from app.types import JSONObject
from app.web.languages import lazy_gettext

CATEGORIES = OAUTH, SAML = "auth_providers", "saml_providers"


class FlowPurpose(StrEnum):
    """The purpose of a flow: who signs in, or a test or single logout."""

    BROWSER = "browser"
    API = "api"
    CONSOLE = "console"
    TEST = "test"
    LOGOUT = "logout"
    """Ends a session at its provider."""


def _account_key() -> object:
    return sa.ForeignKeyConstraint(["account_id"], ["accounts.id"])


class ProviderSetting(Base):
    """Settings of a provider for one account; the system's rows apply to all accounts."""

    __tablename__ = "provider_settings"
    __table_args__ = (
        _account_key(),
        sa.UniqueConstraint("account_id", "category", "provider_name"),
    )
    __policy__ = TablePolicy(
        audit=Audited(hidden=("secrets",)),
        bundle=Bundled(order=150),
        encrypted=("secrets",),
        noun=Noun(
            lazy_gettext("Sign-in provider"),
            lazy_gettext("Sign-in providers"),
            named_by="display_name",
            order=140,
            page="console.show_provider",
            list_page="console.show_providers",
            event="provider",
        ),
        id_names=("setting_id", "configuration_id"),
        sample={
            "category": "auth_providers",
            "provider_name": "google",
            "kind": None,
            "config": {"client_id": "{mark}"},
            "secrets": Sample.SECRET,
        },
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    category: Mapped[str] = mapped_column(Text)
    provider_name: Mapped[str] = mapped_column(Text)  # as in addresses: for OpenID Connect the slug
    kind: Mapped[str | None] = mapped_column(Text)  # the provider, if it is not `provider_name`
    display_name: Mapped[str] = mapped_column(Text)
    enabled: Mapped[bool] = mapped_column(default=True)
    priority: Mapped[int] = mapped_column(default=0)
    config: Mapped[JSONObject] = mapped_column(sa.JSON)
    secrets: Mapped[str] = mapped_column(Text)  # JSON, encrypted
    # Created before each row had its own redirect address.
    shared_callback: Mapped[bool] = mapped_column(default=False, server_default=sa.false())
    # false: someone outside pii_access set its addresses; null: not recorded yet
    admits_pii_members: Mapped[bool | None] = mapped_column()
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=created_at_default, onupdate=clock.now
    )


class Identity(Base):
    """A user's identity at a provider, within one account."""

    __tablename__ = "identities"
    __table_args__: object = (
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"], ["users.account_id", "users.id"], ondelete="CASCADE"
        ),
        sa.UniqueConstraint("account_id", "provider_name", "issuer", "subject"),
        sa.Index("ix_identities_user", "account_id", "user_id"),
    )
    __policy__ = TablePolicy(
        audit=Audited(ignored=("groups", "last_used_at"), hidden=("subject",)),
        bundle=Bundled(order=100),
        noun=Noun(
            lazy_gettext("Sign-in identity"),
            lazy_gettext("Sign-in identities"),
            order=180,
            event="identity",
        ),
        sample={"groups": ["{mark}"], "given_role_id": None},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(Id)
    provider_name: Mapped[str] = mapped_column(Text)
    issuer: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text)
    groups: Mapped[list[str]] = mapped_column(sa.JSON)  # at the last sign-in
    given_role_id: Mapped[int | None] = mapped_column()  # null: the role was set manually
    # false: used under settings that no member of pii_access confirmed; null: not recorded yet
    is_trusted: Mapped[bool | None] = mapped_column()
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    last_used_at: Mapped[datetime] = mapped_column(UtcDateTime, default=created_at_default)


class Flow(Base):
    """A started sign-in (single use, ten minutes) and its one-time code (one minute)."""

    __tablename__ = "sso_flows"
    __table_args__ = (
        _account_key(),
        sa.Index("ix_sso_flows_state", "account_id", "state_hash"),
        sa.Index("ix_sso_flows_code", "account_id", "code_hash"),
        sa.Index("ix_sso_flows_expires_at", "expires_at"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("tokens: started sign-ins and their one-time codes"),
        bundle=NotBundled("sign-ins of minutes"),
        sample={"verifier": Sample.SECRET, "outcome": Sample.SECRET},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    category: Mapped[str] = mapped_column(Text)
    provider_name: Mapped[str] = mapped_column(Text)
    purpose: Mapped[str] = mapped_column(Text)
    state_hash: Mapped[str] = mapped_column(Text)
    browser_hash: Mapped[str] = mapped_column(Text)
    verifier: Mapped[str] = mapped_column(Text)  # of PKCE, encrypted
    nonce: Mapped[str] = mapped_column(Text)
    request_id: Mapped[str] = mapped_column(Text)  # of SAML
    row_id: Mapped[str | None] = mapped_column(Id)  # of the settings in use
    # Our redirect address, as sent to the provider.
    callback_url: Mapped[str | None] = mapped_column(Text)
    redirect_uri: Mapped[str | None] = mapped_column(Text)
    client_state: Mapped[str | None] = mapped_column(Text)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    user_id: Mapped[str | None] = mapped_column(Id)
    is_new_user: Mapped[bool] = mapped_column(default=False)
    # Whether the provider verified a second factor.
    mfa: Mapped[bool] = mapped_column(default=False, server_default=sa.false())
    outcome: Mapped[str | None] = mapped_column(Text)  # of a test: JSON, encrypted
    code_hash: Mapped[str | None] = mapped_column(Text)
    code_needs_state: Mapped[bool] = mapped_column(default=False)
    code_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


class SeenAssertion(Base):
    """A used assertion; prevents replays."""

    __tablename__ = "sso_assertions"
    __table_args__ = (
        _account_key(),
        sa.Index("ix_sso_assertions_expires_at", "expires_at"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("tokens: used assertions"),
        bundle=NotBundled("assertions of minutes"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    assertion_hash: Mapped[str] = mapped_column(Text, primary_key=True)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class IssuerDocument(Base):
    """A document of an issuer, as last read for the settings of an account."""

    __tablename__ = "issuer_documents"
    __table_args__ = (
        _account_key(),
        sa.Index("ix_issuer_documents_stored_at", "stored_at"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("what issuers publish"),
        bundle=NotBundled("what issuers publish is read again"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)  # that owns the settings
    address_hash: Mapped[str] = mapped_column(Text, primary_key=True)
    content: Mapped[JSONObject | None] = mapped_column(sa.JSON(none_as_null=True))
    read_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    error: Mapped[str | None] = mapped_column(Text)  # of the last read, if it failed
    failed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    renewal_asked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    refreshed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # for an unknown key
    stored_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Refusal(Base):
    """A refused sign-in with the failed check, for the account's admins."""

    __tablename__ = "sso_refusals"
    __table_args__ = (
        _account_key(),
        sa.Index("ix_sso_refusals_created_at", "created_at"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("refusals change nothing; the account's admins see them listed"),
        bundle=NotBundled("a log of refused sign-ins, which expires"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    category: Mapped[str] = mapped_column(Text)
    provider_name: Mapped[str] = mapped_column(Text)
    check: Mapped[str] = mapped_column(Text)
    detail: Mapped[str] = mapped_column(Text)
    ip_address: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


class SamlKey(Base):
    """A key pair of an account as SAML service provider: the one in use, and one for a rollover."""

    __tablename__ = "saml_keys"
    __table_args__ = (_account_key(), sa.UniqueConstraint("account_id", "slot"))
    __policy__ = TablePolicy(
        audit=Audited(ignored=("slot",), hidden=("private_key",)),
        bundle=Bundled(order=160),
        encrypted=("private_key",),
        noun=Noun(lazy_gettext("SAML key"), lazy_gettext("SAML keys"), order=150, event="saml_key"),
        id_names=("saml_key_id",),
        sample={"certificate": Sample.CERTIFICATE, "private_key": Sample.SECRET},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    slot: Mapped[int] = mapped_column()  # 1 or 2: an account has at most two
    is_active: Mapped[bool] = mapped_column()  # whether it signs; both decrypt
    certificate: Mapped[str] = mapped_column(Text)  # DER in base64
    private_key: Mapped[str] = mapped_column(Text)  # PEM, encrypted
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


class SamlSession(Base):
    """The identity provider's name of a session, by which single logout finds it."""

    __tablename__ = "saml_sessions"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["account_id", "session_id"],
            ["sessions.account_id", "sessions.id"],
            ondelete="CASCADE",
        ),
        sa.Index("ix_saml_sessions_subject", "account_id", "issuer", "subject"),
        sa.Index("ix_saml_sessions_session", "account_id", "session_id"),
        sa.Index("ix_saml_sessions_created_at", "created_at"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("tokens: names of sessions at the identity provider"),
        bundle=NotBundled("sign-ins end with the move"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True)  # of the flow
    # Null until the one-time code is exchanged.
    session_id: Mapped[str | None] = mapped_column(Id)
    challenge_id: Mapped[str | None] = mapped_column(Id)  # of a second factor that starts it
    provider_name: Mapped[str] = mapped_column(Text)
    issuer: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text)
    name_format: Mapped[str | None] = mapped_column(Text)
    name_qualifier: Mapped[str | None] = mapped_column(Text)
    sp_name_qualifier: Mapped[str | None] = mapped_column(Text)
    session_index: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


class MetadataRefresh(Base):
    """The last refresh of a provider's metadata from its URL, and the last one that changed it."""

    __tablename__ = "saml_metadata_reads"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["account_id", "setting_id"],
            ["provider_settings.account_id", "provider_settings.id"],
            ondelete="CASCADE",
        ),
        sa.Index("ix_saml_metadata_reads_read_at", "read_at"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("reads of metadata; what they change is in the provider's entries"),
        bundle=NotBundled("metadata is read again"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    setting_id: Mapped[str] = mapped_column(Id, primary_key=True)
    read_at: Mapped[datetime] = mapped_column(UtcDateTime)
    error: Mapped[str | None] = mapped_column(Text)  # of the last read
    changed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    changes: Mapped[list[JSONObject]] = mapped_column(sa.JSON)  # at that time
