"""The kinds of mails to users: their placeholders, and what a preview shows for them.

The built-in text of a kind is `templates/email/<kind>.txt`, whose first line is the subject. Its
`details`, if it has them, depend on what happened: `templates/email/<kind>_details.txt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.outbound.mail_markup import LINK
from app.types import JSONMapping
from app.web.languages import gettext_noop

USER, ACCOUNT, PRODUCT = "user.name", "account.name", "product.name"
COMMON = (USER, ACCOUNT, PRODUCT)
EXPIRES, DETAILS = "expires", "details"


@dataclass(frozen=True)
class MailKind:
    """A kind of mails."""

    title: str
    """When it is sent; pages translate it."""
    own: tuple[str, ...] = ()
    """The placeholders besides those of all kinds."""
    example: JSONMapping = field(default_factory=dict)
    """What a preview shows for them, and what `details` are made of."""
    has_report: bool = False
    """Whether strangers may get it, who are told where to report abuse."""
    for_accounts: bool = True
    """Whether accounts may have a text of their own. Not if it warns of what their admins do."""

    @property
    def placeholders(self) -> tuple[str, ...]:
        return (*COMMON, *self.own)

    @property
    def has_link(self) -> bool:
        """Whether the text must contain `{{ link }}`."""
        return LINK in self.own


_MAILED = (LINK, EXPIRES)
KINDS: Mapping[str, MailKind] = {
    "verify_email": MailKind(gettext_noop("A user confirms an address"), _MAILED, has_report=True),
    "invitation": MailKind(gettext_noop("Somebody is invited"), _MAILED, has_report=True),
    "reset_password": MailKind(gettext_noop("A user sets a password"), _MAILED, has_report=True),
    "magic_link": MailKind(
        gettext_noop("A user signs in by a mailed link"), _MAILED, has_report=True
    ),
    "email_change": MailKind(
        gettext_noop("A user confirms a new address"), _MAILED, has_report=True
    ),
    "already_registered": MailKind(
        gettext_noop("Somebody registers with the address of a user"), (LINK,), has_report=True
    ),
    "email_changed": MailKind(
        gettext_noop("A user has changed the address; to the old one"), _MAILED
    ),
    "email_changed_by_admin": MailKind(
        gettext_noop("An admin has changed a user\u2019s address; to the old one")
    ),
    "email_undo_waits": MailKind(gettext_noop("A former address is about to be restored"), _MAILED),
    "email_restored": MailKind(gettext_noop("A former address is restored")),
    "new_device": MailKind(
        gettext_noop("A sign-in from a new device"),
        (LINK, DETAILS),
        {
            "time": "2026-11-30 10:00 UTC",
            "program": lambda agent: "Firefox, Linux",
            "address": "192.0.2.1",
        },
    ),
    "mfa_changed": MailKind(
        gettext_noop("A user\u2019s second factors have changed"),
        (DETAILS,),
        {"what": "factor_added", "factor": "Phone"},
    ),
    "quota_notice": MailKind(
        gettext_noop("An account nears a limit; to its admins"),
        (LINK, "used", "limit", "percent", "meter"),
        {"used": "800", "limit": "1000", "percent": "80", "meter": "records"},
    ),
    "domain_failing": MailKind(
        gettext_noop("The record of a domain is missing; to the admins"),
        ("domain", "days"),
        {"domain": "acme.example", "days": "11"},
    ),
    "domain_lost": MailKind(
        gettext_noop("A domain is no longer verified; to the admins"),
        ("domain",),
        {"domain": "acme.example"},
    ),
    "sender_lapsed": MailKind(
        gettext_noop("The sender address of an account has lapsed; to the admins"),
        ("domain",),
        {"domain": "acme.example"},
    ),
    "webhook_disabled": MailKind(
        gettext_noop("A webhook is disabled; to the admins"),
        (DETAILS,),
        {
            "gone": True,
            "host": "hooks.example.com",
            "collection": "tickets",
            "webhook_id": "00000000-0000-7000-8000-000000000000",
        },
    ),
    "setup_link": MailKind(
        gettext_noop("Somebody is asked to set up single sign-on"), _MAILED, has_report=True
    ),
    "setup_completed": MailKind(
        gettext_noop("Single sign-on is set up by a link"), ("name",), {"name": "Acme IT"}
    ),
    "admin_left": MailKind(
        gettext_noop("A former admin leaves something behind; to the admins"),
        (LINK, DETAILS),
        {"numbers": {"webhook": 1, "setup_link": 2}},
        for_accounts=False,
    ),
    "pii_member_removed": MailKind(
        gettext_noop("A user was removed from pii_access; to its members"),
        (DETAILS,),
        {"email": "ann@acme.example", "reason": "password"},
        for_accounts=False,
    ),
    "pii_sign_in_refused": MailKind(
        gettext_noop("A provider is refused for members of pii_access; to them"),
        ("provider",),
        {"provider": "Google"},
        for_accounts=False,
    ),
}
