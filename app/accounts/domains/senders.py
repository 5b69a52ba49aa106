"""Addresses of accounts that their mails come from: on a domain that they have proved.

Its DNS must name this service as a sender, by SPF or DKIM, so that the mails pass DMARC: with SPF
alone the envelope's sender is in that domain, too; with DKIM the mail server signs for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from app import config, db
from app.accounts import service as accounts
from app.accounts.domains import service
from app.accounts.domains.models import AccountDomain
from app.accounts.models import Account
from app.errors import InvalidValues, Unavailable, problem
from app.outbound import web_waits
from app.web import rate_limits
from app.web.rate_limits import Limit

SETTING = "mail_from"
LOOKUPS = Limit("mail-senders", 60, 3600)
NOT_OFFERED = "The operator has not set up addresses of accounts (SERVICE_MAIL_SPF or _DKIM)."
NOT_PROVED = "The account has not verified the domain {}: add it to its domains first."
NOT_NAMED = "The DNS of {} does not name this service as a sender. Add {}."
NOT_SEEN = "The DNS of {} has not named this service yet: set this in the account itself first."
NO_DMARC = (
    "{0} has no DMARC record, which large mail providers ask for."
    " Add a TXT record _dmarc.{0} with v=DMARC1; p=none."
)
MAX_ABOVE = 4  # domains, each a look-up
NO_ANSWER = "The DNS servers gave no answer. Try again in a minute."


class Proof(StrEnum):
    """The record of a domain that names this service."""

    SPF = "spf"
    DKIM = "dkim"


@dataclass(frozen=True)
class SenderAddress:
    address: str
    envelope: str | None
    """Its own address if SPF is what DMARC goes by; None: the service's."""


def of(account_id: str) -> SenderAddress | None:
    """The address that an account's mails come from, while its domain names this service."""
    account = db.db.session.get(Account, account_id)
    address = account.settings.get(SETTING) if account else None
    domain = service.find_verified(account_id, address) if address else None
    if not address or domain is None or domain.sender_proof is None:
        return None
    return SenderAddress(address, address if domain.sender_proof == Proof.SPF else None)


class Records(NamedTuple):
    """What the DNS of a domain says of mails that this service sends."""

    proof: Proof | None
    """The record that names this service."""
    dmarc: bool | None = None
    """Whether there is a DMARC record; None without an answer."""


def prove(account_id: str, address: str) -> tuple[str, Records]:
    """Look up whether an account's mails may come from an address: the domain's id, and records.

    Raises InvalidValues, TooManyRequests, or Unavailable without an answer.
    """
    if wrong := accounts.email_problem(address, SETTING):
        raise InvalidValues([wrong])
    if not is_offered():
        raise InvalidValues([problem(SETTING, "invalid_option", NOT_OFFERED)])
    domain = service.find_verified(account_id, address)
    if domain is None:
        shown = address.rpartition("@")[2]
        raise InvalidValues([problem(SETTING, "not_verified", NOT_PROVED.format(shown))])
    rate_limits.consume(LOOKUPS.of(account_id))
    domain_id, name = domain.id, domain.domain
    db.db.session.remove()  # hold no connection during the look-up
    from app.outbound import dns_client  # imported on use: large

    try:
        with web_waits.place_or_429(account_id):
            records = look_up(name)
    except dns_client.LookupFailed:
        raise Unavailable(NO_ANSWER) from None
    if records.proof is None:
        message = NOT_NAMED.format(name, wanted_records(name))
        raise InvalidValues([problem(SETTING, "not_authorized", message)])
    return domain_id, records


def require_proof(account_id: str, address: str) -> None:
    """Refuse an address unless its domain has named this service before. Raises InvalidValues."""
    if wrong := accounts.email_problem(address, SETTING):
        raise InvalidValues([wrong])
    domain, shown = service.find_verified(account_id, address), address.rpartition("@")[2]
    if domain is None:
        raise InvalidValues([problem(SETTING, "not_verified", NOT_PROVED.format(shown))])
    if domain.sender_proof is None:
        raise InvalidValues([problem(SETTING, "not_authorized", NOT_SEEN.format(shown))])


def is_offered() -> bool:
    """Whether the operator has said how a domain names this service."""
    settings = config.current()
    return bool(settings.mail_spf or settings.mail_dkim)


def wanted_records(domain: str) -> str:
    """The records that name this service, in words: one of them is enough."""
    settings = config.current()
    wanted = []
    if settings.mail_spf:
        wanted.append(f"{settings.mail_spf[0]} to its SPF record (v=spf1)")
    if settings.mail_dkim:
        selector = settings.mail_dkim.partition(".")[0]
        wanted.append(f"a CNAME from {selector}._domainkey.{domain} to {settings.mail_dkim}")
    return ", or ".join(wanted)


def save(domain: AccountDomain, records: Records) -> None:
    """Note the records of a domain, in the open transaction."""
    domain.sender_proof, domain.sender_dmarc = records


def advice(account_id: str) -> str | None:
    """What the owner of a sender's domain should add to its DNS, if anything."""
    account = db.db.session.get(Account, account_id)
    address = account.settings.get(SETTING) if account else None
    domain = service.find_verified(account_id, address) if address else None
    is_missing = domain is not None and domain.sender_dmarc is False
    return NO_DMARC.format(domain.domain) if domain and is_missing else None


def is_domain_of_sender(account_id: str, domain: AccountDomain) -> bool:
    """Whether the account's mails should come from an address in this domain."""
    account = db.db.session.get_one(Account, account_id)
    address = account.settings.get(SETTING)
    found = service.find_verified(account_id, address) if address else None
    return found is not None and found.id == domain.id


def look_up(domain: str) -> Records:
    """The records of a domain. Raises LookupFailed."""
    proof = _look_up_proof(domain)
    return Records(proof, _has_dmarc(domain) if proof else None)


def _has_dmarc(domain: str) -> bool | None:
    """Whether receivers find a DMARC record (RFC 7489): the domain's, or that of one above it."""
    from app.outbound import dns_client  # imported on use: large

    labels = domain.split(".")
    names = [".".join(labels[n:]) for n in range(len(labels) - 1)][:MAX_ABOVE]
    try:
        return any(
            text.startswith("v=DMARC1")
            for name in names
            for text in dns_client.txt_records(f"_dmarc.{name}", follow_aliases=True)
        )
    except dns_client.LookupFailed:
        return None


def _look_up_proof(domain: str) -> Proof | None:
    from app.outbound import dns_client  # imported on use: large

    settings = config.current()
    if settings.mail_spf:
        texts = [text for text in dns_client.txt_records(domain) if _is_spf(text)]
        # Receivers refuse to judge by several (RFC 7208, section 4.5).
        if len(texts) == 1 and _names_service(texts[0], settings.mail_spf):
            return Proof.SPF
    if settings.mail_dkim:
        selector = settings.mail_dkim.partition(".")[0]
        own = _dkim_keys(dns_client.txt_records(settings.mail_dkim, follow_aliases=True))
        name = f"{selector}._domainkey.{domain}"
        if own & _dkim_keys(dns_client.txt_records(name, follow_aliases=True)):
            return Proof.DKIM
    return None


def _is_spf(text: str) -> bool:
    return text.lower().split(" ", 1)[0] == "v=spf1"


def _names_service(text: str, mechanisms: tuple[str, ...]) -> bool:
    """Whether an SPF record lets this service send; what stands behind `all` has no effect."""
    terms = [term.removeprefix("+") for term in text.lower().split()[1:]]
    for term in terms:
        if term in mechanisms:
            return True
        if term.lstrip("-~?") == "all":
            return False
    redirects = (term.removeprefix("redirect=") for term in terms if term.startswith("redirect="))
    return any(f"include:{name}" in mechanisms for name in redirects)


def _dkim_keys(texts: list[str]) -> set[str]:
    keys = set()
    for text in texts:
        tags = dict(tag.strip().partition("=")[::2] for tag in text.split(";"))
        keys.add("".join(tags.get("p", "").split()))
    return keys - {""}  # an empty one is revoked (RFC 6376, section 3.6.1)
