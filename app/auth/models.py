"""Sessions, mailed tokens, invitations and API keys."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column, relationship

from app import clock
from app.accounts.models import Account, Role
from app.db import Base
from app.db.policy import Audited, Bundled, NotAudited, NotBundled, Noun, Sample, TablePolicy
from app.db.types import Id, Text, UtcDateTime, created_at_default
from app.ids import new_id
from app.types import JSONObject
from app.web.languages import lazy_gettext


class SessionKind(StrEnum):
    """The kind of client that a session is for."""

    API = "api"
    CONSOLE = "console"
    PORTAL = "portal"


class InvitationState(StrEnum):
    """The state of an invitation; an expired one is stored as pending."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


def _user_key() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["account_id", "user_id"], ["users.account_id", "users.id"], ondelete="CASCADE"
    )


class SignInSession(Base):
    """One sign-in and its family of refresh tokens.

    Stores only the hash of the newest token: any older token of the family is a reuse.
    """

    __tablename__ = "sessions"
    __table_args__ = (
        _user_key(),
        sa.Index("ix_sessions_user", "account_id", "user_id"),
        sa.Index("ix_sessions_hash", "account_id", "token_hash"),
        sa.Index("ix_sessions_expires_at", "expires_at"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("tokens"),
        bundle=NotBundled("sign-ins end with the move"),
        noun=Noun(lazy_gettext("Session"), lazy_gettext("Sessions"), order=200),
        id_names=("session_id",),
        sample={"kind": "api"},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(Id)
    kind: Mapped[str] = mapped_column(Text)  # a SessionKind
    token_hash: Mapped[str] = mapped_column(Text)
    ip_address: Mapped[str | None] = mapped_column(Text)
    user_agent: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    last_used_at: Mapped[datetime] = mapped_column(UtcDateTime, default=created_at_default)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # Null unless the user has reauthenticated since the session began.
    authenticated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    mfa: Mapped[bool] = mapped_column(default=False, server_default=sa.false())
    portal: Mapped[JSONObject | None] = mapped_column(sa.JSON(none_as_null=True))
    """Of a portal session: its `pages`, its `return_url`, and who it was `opened_by`.

    `opener_tokens` is the least id of valid tokens of theirs: another one as all sessions end.
    """


class LinkPurpose(StrEnum):
    """The purpose of a mailed token's link."""

    RESET = "reset"
    VERIFICATION = "verification"
    EMAIL_CHANGE = "email_change"
    EMAIL_UNDO = "email_undo"
    EMAIL_KEEP = "email_keep"  # stops an undoing that waits
    SIGN_IN = "sign_in"  # the link that development prints at its start
    MAGIC_LINK = "magic_link"


class MailedToken(Base):
    """The hash of a token in a mailed link; the token itself is only in the mail."""

    __tablename__ = "mailed_tokens"
    __table_args__ = (
        _user_key(),
        sa.Index("ix_mailed_tokens_hash", "account_id", "token_hash"),
        sa.Index("ix_mailed_tokens_user", "account_id", "user_id"),
    )
    __policy__ = TablePolicy(
        audit=NotAudited("tokens"),
        bundle=NotBundled("links of minutes, to the address of the former instance"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(Id)
    purpose: Mapped[str] = mapped_column(Text)
    email: Mapped[str] = mapped_column(Text)  # the address it was mailed to
    redirect_uri: Mapped[str | None] = mapped_column(Text)  # of a client application
    source: Mapped[str | None] = mapped_column(Text)  # a digest of who asked for the mail
    token_hash: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # When a change of address is undone by this token, for lack of a second factor.
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


class StreamTicket(Base):
    """The hash of a ticket that opens one stream, with the credential it stands for."""

    __tablename__ = "realtime_tickets"
    __table_args__ = (
        _user_key(),
        sa.Index("ix_realtime_tickets_user", "account_id", "user_id"),
        sa.Index("ix_realtime_tickets_expires_at", "expires_at"),
    )
    __policy__ = TablePolicy(audit=NotAudited("tokens"), bundle=NotBundled("tokens of seconds"))

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    token_hash: Mapped[str] = mapped_column(Text, primary_key=True)
    user_id: Mapped[str] = mapped_column(Id)
    credential: Mapped[JSONObject] = mapped_column(sa.JSON)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Invitation(Base):
    """An invitation to an account; its tokens are only in the mail and in the response."""

    __tablename__ = "invitations"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["role_id"], ["roles.id"]),
        sa.Index("ix_invitations_hash", "account_id", "token_hash"),
        sa.Index("ix_invitations_shown_hash", "account_id", "shown_token_hash"),
        sa.Index("ix_invitations_created_at", "account_id", "created_at"),
    )
    __policy__ = TablePolicy(
        audit=Audited(ignored=("email_key",), hidden=("token_hash", "shown_token_hash")),
        bundle=Bundled(order=60),
        noun=Noun(
            lazy_gettext("Invitation"),
            lazy_gettext("Invitations"),
            named_by="email",
            order=40,
            page="console.show_invitations",
            list_page="console.show_invitations",
            event="invitation",
        ),
        id_names=("invitation_id", "invitation"),
        sample={"email": Sample.EMAIL, "email_key": Sample.EMAIL, "state": "pending", "groups": []},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    email: Mapped[str] = mapped_column(Text)
    email_key: Mapped[str] = mapped_column(Text)
    role_id: Mapped[int | None]  # null if the role was deleted after it was closed
    groups: Mapped[list[str]] = mapped_column(sa.JSON)  # ids
    state: Mapped[str] = mapped_column(Text, default=InvitationState.PENDING)
    token_hash: Mapped[str] = mapped_column(Text)  # of the mailed token
    shown_token_hash: Mapped[str | None] = mapped_column(Text)  # of the token in the response
    redirect_uri: Mapped[str | None] = mapped_column(Text)
    """The address that its link leads to, if the account lists it."""
    invited_by: Mapped[str | None] = mapped_column(Id)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    accepted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(
        UtcDateTime, default=created_at_default, onupdate=clock.now
    )

    role: Mapped[Role | None] = relationship(lazy="joined")

    @property
    def status(self) -> str:
        """The state, or `expired` for a pending invitation past its expiry."""
        is_pending = self.state == InvitationState.PENDING
        is_expired = is_pending and self.expires_at <= clock.now()
        return InvitationState.EXPIRED if is_expired else self.state


class ApiKey(Base):
    """A key by which programs act as its user; only its hash is stored."""

    __tablename__ = "api_keys"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["account_id", "created_by"], ["users.account_id", "users.id"], ondelete="CASCADE"
        ),
        sa.UniqueConstraint("account_id", "key_hash"),
        sa.Index("ix_api_keys_owner", "account_id", "created_by"),
        sa.Index("ix_api_keys_previous", "account_id", "previous_hash"),
    )
    __policy__ = TablePolicy(
        audit=Audited(ignored=("last_used_at",), hidden=("key_hash", "previous_hash", "hint")),
        bundle=Bundled(order=70, is_copied=False),
        noun=Noun(
            lazy_gettext("API key"),
            lazy_gettext("API keys"),
            named_by="name",
            order=50,
            page="console.show_keys",
            list_page="console.show_keys",
            event="api_key",
        ),
        id_names=("key_id",),
        sample={"scopes": None, "ip_addresses": None, "key_hash": Sample.KEY_HASH},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    key_hash: Mapped[str] = mapped_column(Text)
    # The secret before the last rotation, which works for a while.
    previous_hash: Mapped[str | None] = mapped_column(Text)
    previous_valid_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    hint: Mapped[str | None] = mapped_column(Text)  # the secret's last characters
    name: Mapped[str] = mapped_column(Text)
    description: Mapped[str | None] = mapped_column(Text)
    created_by: Mapped[str] = mapped_column(Id)  # the user that it acts as
    scopes: Mapped[dict[str, list[str]] | list[str] | None] = mapped_column(
        sa.JSON(none_as_null=True)
    )
    """Operations on records, by collection or in the older form; of an operator key a list."""
    read_only: Mapped[bool] = mapped_column(default=False, server_default=sa.false())
    # Networks that it may be used from; null: any.
    ip_addresses: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    is_revoked: Mapped[bool] = mapped_column(default=False)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_by: Mapped[str | None] = mapped_column(Id)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    version: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=created_at_default)

    account: Mapped[Account] = relationship(
        primaryjoin=lambda: sa.orm.foreign(ApiKey.account_id) == Account.id,
        viewonly=True,
        lazy="joined",
        innerjoin=True,
    )

    @property
    def account_code(self) -> str:
        """The account code in the key's text."""
        return self.account.account_code

    @property
    def user_id(self) -> str:
        """The user that it acts as."""
        return self.created_by

    @property
    def is_operator(self) -> bool:
        """Whether this is an operator key, with scopes over all accounts but its own."""
        return isinstance(self.scopes, list)

    @property
    def is_active(self) -> bool:
        """Whether the key is neither revoked nor expired."""
        return not self.is_revoked and not (self.expires_at and self.expires_at <= clock.now())


class ScimToken(Base):
    """A token by which the account's directory provisions users (SCIM); only its hash is stored."""

    __tablename__ = "scim_tokens"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.UniqueConstraint("account_id", "token_hash"),
    )
    __policy__ = TablePolicy(
        audit=Audited(ignored=("last_used_at",), hidden=("token_hash", "hint")),
        bundle=Bundled(order=110, is_copied=False),
        noun=Noun(
            lazy_gettext("SCIM token"),
            lazy_gettext("SCIM tokens"),
            named_by="hint",
            name_prefix="…",
            order=80,
            page="console.show_scim",
            list_page="console.show_scim",
            event="scim_token",
        ),
        id_names=("scim_token_id",),
        # With an earlier time of use, lists would change when the token is used.
        sample={"token_hash": Sample.SCIM_TOKEN_HASH, "last_used_at": Sample.LATER},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    token_hash: Mapped[str] = mapped_column(Text)
    hint: Mapped[str] = mapped_column(Text)  # the token's last characters
    created_by: Mapped[str] = mapped_column(Id)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    version: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


class SetupLink(Base):
    """A link by which somebody without a user sets up single sign-on for an account."""

    __tablename__ = "setup_links"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.UniqueConstraint("account_id", "token_hash"),
        sa.Index("ix_setup_links_expires_at", "expires_at"),
    )
    __policy__ = TablePolicy(
        audit=Audited(hidden=("email", "token_hash")),
        bundle=NotBundled("links of days, with the address of the former instance"),
        noun=Noun(
            lazy_gettext("Setup link"),
            lazy_gettext("Setup links"),
            named_by="name",
            order=70,
            page="console.show_setup_links",
            list_page="console.show_setup_links",
            event="setup_link",
        ),
        id_names=("setup_link_id",),
        sample={"features": ["sso"]},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(Text)
    email: Mapped[str | None] = mapped_column(Text)  # where the link was mailed to
    features: Mapped[list[str]] = mapped_column(sa.JSON)
    token_hash: Mapped[str] = mapped_column(Text)  # of the link, and once opened, of the cookie
    created_by: Mapped[str] = mapped_column(Id)
    opened_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    tested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)

    @property
    def state(self) -> str:
        """The state of the link."""
        if self.completed_at:
            return "completed"
        if self.revoked_at:
            return "revoked"
        if self.expires_at <= clock.now():
            return "expired"
        return "opened" if self.opened_at else "pending"
