"""Addresses of accounts that their mails come from: proved by DNS, and only as long as that."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from dns import rcode
from flask import Flask

from app import clock, db
from app.accounts.domains.checks import enqueue_checks
from app.accounts.domains.models import AccountDomain
from tests.accounts.test_product import forget, refused
from tests.builders import Caller, Cast
from tests.console.browser import Browser
from tests.domains.proving import prove
from tests.mailbox import body_of, outbox, run_jobs
from tests.name_server import NameServer
from tests.test_mail import Receiver, use

DOMAIN, ADDRESS = "acme.example", "news@acme.example"
SPF, KEY = "v=spf1 include:spf.service.example -all", "v=DKIM1; k=rsa; p=MIGfMA0G"
NAMED = {"mail_spf": ("include:spf.service.example", "ip4:192.0.2.1")}
SIGNED = {"mail_dkim": "s1._domainkey.service.example"}
OURS, THEIRS = "s1._domainkey.service.example", "s1._domainkey.acme.example"


def offer(app: Flask, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Change the settings of the service."""
    settings = replace(app.extensions["atrium.config"], **changes)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)


def ask(caller: Caller, address: str | None = ADDRESS) -> Any:
    return caller.patch("account", {"mail_from": address})


def sender_of(user: Caller) -> str:
    """The address that a new mail to a user comes from."""
    assert forget(user).status_code == 200
    run_jobs(user.app)
    return str(outbox(user.app)[-1]["From"].addresses[0].addr_spec)


def check_daily(app: Flask) -> None:
    """Run the checks of the next day."""
    with app.app_context(), db.transaction() as session:
        day_ago = clock.now() - timedelta(days=1, seconds=1)
        session.execute(sa.update(AccountDomain).values(last_checked_at=day_ago))
    with app.app_context():
        enqueue_checks({})
    run_jobs(app)


def test_sender_on_a_proved_domain_that_names_the_service(
    app: Flask, cast: Cast, dns: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(ask(cast.alice)) == [("mail_from", "invalid_option")]
    assert refused(ask(cast.alice, "")) == [("mail_from", "invalid_email")]
    offer(app, monkeypatch, **NAMED)
    assert refused(ask(cast.alice)) == [("mail_from", "not_verified")]
    prove(dns, cast.alice)
    assert refused(ask(cast.alice)) == [("mail_from", "not_authorized")]
    assert sender_of(cast.bob) == "atrium@localhost"
    dns.texts[DOMAIN] = [SPF]
    shown = ask(cast.alice).json
    assert (shown["mail_from"], shown["mail_from_active"]) == (ADDRESS, True)
    assert sender_of(cast.bob) == ADDRESS
    assert sender_of(cast.charlie) == "atrium@localhost"
    # A domain of somebody else, a subdomain, and none.
    for address in ("news@globex.example", "news@mail.acme.example"):
        assert refused(ask(cast.alice, address)) == [("mail_from", "not_verified")]
    assert refused(ask(cast.charlie)) == [("mail_from", "not_verified")]
    assert refused(ask(cast.alice, f"{ADDRESS}\r\nBcc: x@y.example"))[0][0] == "mail_from"
    assert cast.bob.patch("account", {"mail_from": ADDRESS}).status_code == 403
    assert ask(cast.alice, None).json["mail_from"] is None
    assert sender_of(cast.bob) == "atrium@localhost"


RECORDS: dict[str, tuple[list[str], bool]] = {
    "an include": ([SPF], True),
    "in capitals": (["V=SPF1 INCLUDE:SPF.SERVICE.EXAMPLE ~ALL"], True),
    "an address": (["v=spf1 +ip4:192.0.2.1 -all"], True),
    "a redirect": (["v=spf1 redirect=spf.service.example"], True),
    "beside other texts": (["hello", SPF, "v=spf10 x"], True),
    "none": ([], False),
    "another service": (["v=spf1 include:spf.other.example -all"], False),
    "behind all": (["v=spf1 -all include:spf.service.example"], False),
    "denied": (["v=spf1 -include:spf.service.example"], False),
    "a longer name": (["v=spf1 include:spf.service.example.evil.example"], False),
    "two": ([SPF, "v=spf1 -all"], False),
    "no version": (["include:spf.service.example"], False),
}


@pytest.mark.parametrize("case", RECORDS)
def test_spf_record_that_names_the_service(
    app: Flask, cast: Cast, dns: NameServer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    texts, accepted = RECORDS[case]
    offer(app, monkeypatch, **NAMED)
    prove(dns, cast.alice)
    dns.texts[DOMAIN] = texts
    answer = ask(cast.alice)
    assert answer.status_code == (200 if accepted else 400), answer.json


def test_dkim_record_that_names_the_service(
    app: Flask, cast: Cast, dns: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(app, monkeypatch, **SIGNED)
    prove(dns, cast.alice)
    dns.texts[OURS] = [KEY]
    for texts in ([], ["v=DKIM1; p=other"], ["v=DKIM1; p="]):
        dns.texts[THEIRS] = texts
        assert refused(ask(cast.alice)) == [("mail_from", "not_authorized")]
    dns.texts[THEIRS] = ["v=DKIM1;p=MIGfMA0G"]
    assert ask(cast.alice).status_code == 200
    assert ask(cast.alice, None).status_code == 200
    del dns.texts[THEIRS]
    dns.aliases[THEIRS] = OURS
    assert ask(cast.alice).status_code == 200


DMARC: dict[str, tuple[dict[str, list[str]], bool]] = {
    "none": ({}, False),
    "its own": ({"_dmarc.news.acme.example": ["v=DMARC1; p=reject"]}, True),
    "above it": ({"_dmarc.acme.example": ["hello", "v=DMARC1; p=none"]}, True),
    "something else": ({"_dmarc.news.acme.example": ["v=spf1 -all"]}, False),
    "of a neighbour": ({"_dmarc.mail.acme.example": ["v=DMARC1; p=none"]}, False),
}


@pytest.mark.parametrize("case", DMARC)
def test_missing_dmarc_record_of_a_sender_is_advice(
    app: Flask, cast: Cast, dns: NameServer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    records, is_enough = DMARC[case]
    offer(app, monkeypatch, **NAMED)
    prove(dns, cast.alice, "news.acme.example")
    dns.texts |= {"news.acme.example": [SPF], **records}
    shown = ask(cast.alice, "hello@news.acme.example").json
    assert shown["mail_from_active"] is True
    advice = shown["mail_from_advice"]
    assert (advice is None) is is_enough
    page = Browser(app, cast.alice).get(f"settings/{cast.alice.account_id}/mails")
    assert ("_dmarc.news.acme.example" in page.text) is not is_enough
    if not is_enough:
        assert "_dmarc.news.acme.example" in advice
        dns.texts["_dmarc.news.acme.example"] = ["v=DMARC1; p=none"]
        check_daily(app)
        assert cast.alice.get("account").json["mail_from_advice"] is None
    assert ask(cast.alice, None).json["mail_from_advice"] is None


def test_sender_of_the_envelope_goes_with_the_record(
    app: Flask, cast: Cast, dns: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    senders: list[str] = []

    class Envelopes(Receiver):
        async def handle_MAIL(
            self, server: Any, session: Any, envelope: Any, address: str, options: Any
        ) -> str:
            senders.append(address)
            if address == "refused@acme.example":
                return "553 not yours"
            envelope.mail_from = address
            return "250 OK"

    prove(dns, cast.alice)
    dns.texts |= {DOMAIN: [SPF], OURS: [KEY], THEIRS: [KEY]}
    with Envelopes() as receiver:
        use(app, monkeypatch, f"smtp://127.0.0.1:{receiver.port}", **NAMED)
        ask(cast.alice)
        forget(cast.bob)
        run_jobs(app)
        assert senders == [ADDRESS]
        assert receiver.received[-1]["From"].addresses[0].addr_spec == ADDRESS
        offer(app, monkeypatch, mail_spf=(), **SIGNED)
        ask(cast.alice, "other@acme.example")
        forget(cast.bob)
        run_jobs(app)
        # The signature is what receivers go by.
        assert senders[1:] == ["atrium@localhost"]
        assert receiver.received[-1]["From"].addresses[0].addr_spec == "other@acme.example"
        offer(app, monkeypatch, **NAMED)
        ask(cast.alice, "refused@acme.example")
        forget(cast.bob)
        run_jobs(app)
        assert senders[2:] == ["refused@acme.example", "atrium@localhost"]
        assert receiver.received[-1]["From"].addresses[0].addr_spec == "atrium@localhost"


def test_sender_on_a_domain_with_umlauts(
    app: Flask, cast: Cast, dns: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "xn--bcher-kva.example"
    prove(dns, cast.alice, "b\u00fccher.example")
    dns.texts[name] = [SPF]
    with Receiver(enable_SMTPUTF8=False) as receiver:
        use(app, monkeypatch, f"smtp://127.0.0.1:{receiver.port}", **NAMED)
        assert ask(cast.alice, "news@b\u00fccher.example").json["mail_from_active"]
        forget(cast.bob)
        run_jobs(app)
        assert receiver.received[-1]["From"].addresses[0].addr_spec == f"news@{name}"


def test_sender_lapses_with_its_record(
    app: Flask, cast: Cast, dns: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(app, monkeypatch, **NAMED)
    prove(dns, cast.alice)
    dns.texts[DOMAIN] = [SPF]
    assert ask(cast.alice).status_code == 200
    check_daily(app)
    assert sender_of(cast.bob) == ADDRESS
    dns.rcode = rcode.Rcode.SERVFAIL  # no answer changes nothing
    check_daily(app)
    dns.rcode = None
    assert sender_of(cast.bob) == ADDRESS
    dns.texts[DOMAIN] = ["v=spf1 -all"]
    check_daily(app)
    notice = outbox(app)[-1]
    assert notice["To"] == cast.alice.email
    assert notice["Subject"] == "Mails no longer come from acme.example"
    assert "names this service" in body_of(notice)
    assert sender_of(cast.bob) == "atrium@localhost"
    shown = cast.alice.get("account").json
    assert (shown["mail_from"], shown["mail_from_active"]) == (ADDRESS, False)
    entries = cast.alice.get("account/audit-logs?table_name=account_domains").json["items"]
    changes = [one for one in entries if one["column_name"] == "sender_proof"]
    assert (changes[0]["old_value"], changes[0]["new_value"]) == ("spf", None)
    dns.texts[DOMAIN] = [SPF]
    check_daily(app)
    assert sender_of(cast.bob) == ADDRESS
    domain = cast.alice.get("account/domains").json["items"][0]["id"]
    assert cast.alice.delete(f"account/domains/{domain}").status_code == 204
    assert sender_of(cast.bob) == "atrium@localhost"


def test_sender_needs_a_recent_sign_in_and_no_key(
    app: Flask, cast: Cast, dns: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(app, monkeypatch, **NAMED)
    prove(dns, cast.alice)
    dns.texts[DOMAIN] = [SPF]
    key = Caller(app, **{"X-API-Key": cast.alice.post("api-keys", {"name": "ci"}).json["key"]})
    assert ask(key).status_code == 403
    dns.rcode = rcode.Rcode.SERVFAIL
    assert ask(cast.alice).status_code == 503
    assert cast.alice.get("account").json["mail_from"] is None
