"""The names of the kinds of jobs."""

from __future__ import annotations

from app.http.languages import lazy_gettext

NAMES = {
    "audit.checkpoint": lazy_gettext("Checkpoint of the audit log"),
    "audit.mail_checkpoint": lazy_gettext("Mail with an audit checkpoint"),
    "accounts.certify_deletion": lazy_gettext("Certificate of an account's deletion"),
    "accounts.expire_exports": lazy_gettext("Removal of expired exports"),
    "accounts.export": lazy_gettext("Export of an account"),
    "auth.forgot_password": lazy_gettext("Request for a new password"),
    "auth.known_already": lazy_gettext("Mail about a repeated registration"),
    "auth.notify_setup_completed": lazy_gettext("Mail about a completed set-up"),
    "auth.purge": lazy_gettext("Removal of expired sessions and links"),
    "auth.resend_verification": lazy_gettext("Request for another verification mail"),
    "auth.send_email_change": lazy_gettext("Verification mail for a new address"),
    "auth.send_email_changed": lazy_gettext("Mail about a changed address"),
    "auth.send_invitation": lazy_gettext("Invitation mail"),
    "auth.send_magic_link": lazy_gettext("Mail with a link to sign in"),
    "auth.send_new_device": lazy_gettext("Mail about a new device"),
    "auth.send_reset": lazy_gettext("Password reset mail"),
    "auth.send_setup_link": lazy_gettext("Mail with a setup link"),
    "auth.send_verification": lazy_gettext("Verification mail"),
    "auth.tell_mfa_change": lazy_gettext("Mail about a change of second factors"),
    "auth.tell_pii_expulsion": lazy_gettext("Mail about lost access to personal data"),
    "auth.tell_pii_refusal": lazy_gettext("Mail about refused access to personal data"),
    "collections.drop_unfinished_indexes": lazy_gettext("Removal of unfinished indexes"),
    "collections.measure": lazy_gettext("Measurement of a collection's rows"),
    "domains.check": lazy_gettext("Check of a domain's DNS record"),
    "domains.check_due": lazy_gettext("Search for domains to check"),
    "domains.notify_admin": lazy_gettext("Mail about a domain"),
    "feed.purge": lazy_gettext("Removal of old changes of the feed"),
    "files.expire": lazy_gettext("Removal of unused uploads"),
    "files.remove": lazy_gettext("Removal of files"),
    "files.remove_account": lazy_gettext("Removal of an account's files"),
    "files.sweep": lazy_gettext("Search for files without records"),
    "idempotency.purge": lazy_gettext("Removal of old idempotency keys"),
    "jobs.purge": lazy_gettext("Removal of old jobs"),
    "records.erase": lazy_gettext("Erasure of a record's history"),
    "records.remove_account": lazy_gettext("Removal of an account's records"),
    "security.checkpoint": lazy_gettext("Checkpoint of the security logs"),
    "security.seal": lazy_gettext("Numbering of security events"),
    "retention.apply": lazy_gettext("Search for accounts with a retention policy"),
    "retention.apply_account": lazy_gettext("Deletion by an account's retention policy"),
    "sso.purge": lazy_gettext("Removal of unfinished single sign-ons"),
    "sso.read_metadata": lazy_gettext("Read of identity providers' metadata"),
    "usage.check_quotas": lazy_gettext("Check of quotas"),
    "usage.fold": lazy_gettext("Addition of past usage"),
    "usage.notify_admin": lazy_gettext("Mail about a quota"),
    "usage.record_levels": lazy_gettext("Daily levels of usage"),
    "usage.remove_account": lazy_gettext("Removal of an account's usage"),
    "users.erase": lazy_gettext("Erasure of a user's personal data"),
    "webhooks.bound": lazy_gettext("Limit of the delivery log"),
    "webhooks.purge": lazy_gettext("Removal of old deliveries"),
    "webhooks.redeliver": lazy_gettext("Redelivery to a webhook"),
    "webhooks.remove": lazy_gettext("Removal of a webhook's deliveries"),
    "webhooks.send_security_log": lazy_gettext("Security log sent to its receiver"),
    "webhooks.start_security_streams": lazy_gettext("Search for security logs to send"),
    "webhooks.tell_disabled": lazy_gettext("Mail about a disabled webhook"),
    "workflows.purge": lazy_gettext("Removal of old instances"),
    "workflows.remove": lazy_gettext("Removal of a workflow's instances"),
}


def of_kind(kind: str) -> str:
    """The name of a kind of job; a kind that another release defines is its own name."""
    return str(NAMES.get(kind, kind))
