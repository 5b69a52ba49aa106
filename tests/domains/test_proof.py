"""Who may claim a domain, and what proves it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import dns.rcode
import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock
from app.accounts.domains import checks
from app.accounts.domains.models import AccountDomain, VerifiedDomain
from app.db import db, transaction
from app.outbound import dns_client
from tests.builders import Caller, Cast
from tests.domains.proving import add, prove
from tests.mailbox import body_of, outbox, run_jobs
from tests.name_server import NameServer

OTHERS_RECORD = "Another account has proved this domain, and its DNS record is still there."


def verify(owner: Caller, domain: dict[str, Any]) -> Any:
    return owner.post(f"account/domains/{domain['id']}/verify")


def state(owner: Caller, domain: dict[str, Any]) -> str:
    items = owner.get("account/domains").json["items"]
    return str(next(one["state"] for one in items if one["id"] == domain["id"]))


def owners(app: Flask) -> dict[str, str]:
    with app.app_context():
        rows = db.session.execute(sa.select(VerifiedDomain.domain, VerifiedDomain.owner_account_id))
        return {row[0]: row[1] for row in rows}


def test_domain_is_verified_by_txt_record(app: Flask, cast: Cast, dns: NameServer) -> None:
    domain = add(cast.alice, " Acme.Example. ")
    assert (domain["domain"], domain["state"]) == ("acme.example", "pending")
    assert domain["record_name"] == "_atrium-challenge.acme.example"
    assert domain["record_value"].startswith("atrium-domain-verification=")
    assert verify(cast.alice, domain).status_code == 409
    assert owners(app) == {}
    dns.prove(domain)
    verified = verify(cast.alice, domain)
    assert (verified.status_code, verified.json["state"]) == (200, "verified")
    assert verified.json["verified_at"] is not None
    assert owners(app) == {"acme.example": cast.alice.account_id}
    again = verify(cast.alice, domain).json
    assert again["verified_at"] == verified.json["verified_at"]
    assert dns.asked == ["_atrium-challenge.acme.example"] * 3


@pytest.mark.parametrize(
    "name",
    [
        "gmail.com",
        "GMail.com",
        "yahoo.co.uk",
        "co.uk",
        "com.au",
        "github.io",
        "com",
        "localhost",
        "192.0.2.1",
        "[::1]",
        "",
        "a b.example",
        "acme..example",
        "-acme.example",
        "*.acme.example",
        "_dmarc.acme.example",
        "http://acme.example/",
        "x@acme.example",
        f"{'a' * 64}.example",
        f"{'a.' * 120}example",
        "acme.example\n",
    ],
)
@pytest.mark.one_database
def test_domain_that_is_public_or_malformed_is_400(cast: Cast, name: str) -> None:
    answer = cast.alice.post("account/domains", {"domain": name})
    if name.strip() == "acme.example":  # a blank around it is none of it
        assert answer.json["domain"] == "acme.example"
        return
    assert answer.status_code == 400, answer.json
    assert [one["field"] for one in answer.json["details"]] == ["domain"]


@pytest.mark.one_database
def test_domain_homograph_and_subdomain_are_distinct(
    app: Flask, cast: Cast, dns: NameServer
) -> None:
    prove(dns, cast.alice)
    homograph = prove(dns, cast.charlie, "аcme.example")  # noqa: RUF001 - a Cyrillic letter
    assert homograph["domain"] == "xn--cme-5cd.example"
    below = prove(dns, cast.charlie, "mail.acme.example")
    assert below["state"] == "verified"
    found = owners(app)
    assert found.pop("acme.example") == cast.alice.account_id
    assert set(found.values()) == {cast.charlie.account_id}


NO_PROOFS: dict[str, Any] = {
    "the record of another token": lambda one: {
        one["record_name"]: ["atrium-domain-verification=x"]
    },
    "the token alone": lambda one: {one["record_name"]: [one["record_value"].partition("=")[2]]},
    "in another case": lambda one: {one["record_name"]: [one["record_value"].upper()]},
    "with more behind it": lambda one: {one["record_name"]: [one["record_value"] + "x"]},
    "at the domain itself": lambda one: {one["domain"]: [one["record_value"]]},
    "at another name": lambda one: {f"www.{one['domain']}": [one["record_value"]]},
    "an empty answer": lambda one: {one["record_name"]: []},
    "huge": lambda one: {one["record_name"]: [one["record_value"] + "x" * 5000]},
    "behind too many": lambda one: {
        one["record_name"]: [*(f"{n:03}" for n in range(200)), f"~{one['record_value']}"]
    },
}


@pytest.mark.one_database
@pytest.mark.parametrize("case", NO_PROOFS)
def test_domain_verification_with_other_records_is_409(
    cast: Cast, dns: NameServer, case: str
) -> None:
    domain = add(cast.alice)
    dns.texts |= NO_PROOFS[case](domain)
    answer = verify(cast.alice, domain)
    assert (answer.status_code, answer.json["error"]) == (409, "conflict")
    assert state(cast.alice, domain) == "pending"


@pytest.mark.one_database
def test_domain_verification_with_record_of_other_account_is_409(
    cast: Cast, dns: NameServer
) -> None:
    mine, theirs = add(cast.alice), add(cast.charlie)
    assert mine["record_value"] != theirs["record_value"]
    dns.prove(mine)
    assert verify(cast.charlie, theirs).status_code == 409
    assert verify(cast.alice, mine).status_code == 200


@pytest.mark.one_database
def test_domain_verification_does_not_follow_cname(cast: Cast, dns: NameServer) -> None:
    domain = add(cast.alice)
    dns.aliases[domain["record_name"]] = "customers.saas.example"
    dns.texts["customers.saas.example"] = [domain["record_value"]]
    assert verify(cast.alice, domain).status_code == 409


@pytest.mark.one_database
def test_domain_verification_with_wildcard_record(cast: Cast, dns: NameServer) -> None:
    domain, below = add(cast.alice), add(cast.charlie, "mail.acme.example")
    dns.texts["*.acme.example"] = [domain["record_value"]]
    assert verify(cast.charlie, below).status_code == 409  # the token is of another domain
    assert verify(cast.alice, domain).status_code == 200


@pytest.mark.one_database
def test_domain_verification_reads_long_answers_by_tcp(cast: Cast, dns: NameServer) -> None:
    domain = add(cast.alice)
    dns.texts[domain["record_name"]] = ["x" * 600, domain["record_value"]]
    assert verify(cast.alice, domain).status_code == 200


@pytest.mark.one_database
@pytest.mark.parametrize("fault", ["servfail", "refused", "silent"])
def test_domain_verification_without_dns_answer_is_503(
    cast: Cast, dns: NameServer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns_client, "LIFETIME", 0.5)
    domain = add(cast.alice)
    dns.silent = fault == "silent"
    dns.rcode = {"servfail": dns_rcode("SERVFAIL"), "refused": dns_rcode("REFUSED")}.get(fault)
    answer = verify(cast.alice, domain)
    assert (answer.status_code, answer.json["error"]) == (503, "unavailable")
    assert state(cast.alice, domain) == "pending"


def dns_rcode(name: str) -> dns.rcode.Rcode:
    return dns.rcode.from_text(name)


def test_domain_verification_of_owned_domain_is_409(
    app: Flask, cast: Cast, dns: NameServer
) -> None:
    mine, theirs = add(cast.alice), add(cast.charlie)
    dns.prove(mine)
    dns.prove(theirs)
    assert verify(cast.alice, mine).status_code == 200
    refused = verify(cast.charlie, theirs)
    assert (refused.status_code, refused.json["error"]) == (409, "conflict")
    assert refused.json["message"].startswith(OTHERS_RECORD)
    assert state(cast.charlie, theirs) == "pending"
    assert owners(app) == {"acme.example": cast.alice.account_id}


def test_domain_moves_to_other_account_after_record_is_gone(
    app: Flask, cast: Cast, dns: NameServer
) -> None:
    mine = prove(dns, cast.alice)
    dns.texts.clear()
    theirs = prove(dns, cast.charlie)
    assert theirs["state"] == "verified"
    assert owners(app) == {"acme.example": cast.charlie.account_id}
    run_jobs(app)
    assert (state(cast.alice, mine), state(cast.charlie, theirs)) == ("pending", "verified")
    (mail,) = outbox(app)
    assert (mail["To"], "acme.example" in body_of(mail)) == (cast.alice.email, True)
    assert owners(app) == {"acme.example": cast.charlie.account_id}
    # The former owner must prove it anew; to remove the row takes nothing from the new one.
    assert verify(cast.alice, mine).status_code == 409
    assert cast.alice.delete(f"account/domains/{mine['id']}").status_code == 204
    assert owners(app) == {"acme.example": cast.charlie.account_id}


def test_domain_deletion_frees_the_domain(app: Flask, cast: Cast, dns: NameServer) -> None:
    mine = prove(dns, cast.alice)
    assert cast.alice.delete(f"account/domains/{mine['id']}").status_code == 204
    assert owners(app) == {}
    assert cast.alice.get("account/domains").json["items"] == []
    assert prove(dns, cast.charlie)["state"] == "verified"


def test_domain_of_deleted_account_is_free(app: Flask, cast: Cast, dns: NameServer) -> None:
    prove(dns, cast.alice)
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    assert owners(app) == {}
    with app.app_context():
        assert db.session.scalars(sa.select(AccountDomain)).all() == []


def day_passes(app: Flask) -> None:
    """Let the daily check of all domains run."""
    with app.app_context():
        with transaction() as session:
            yesterday = clock.now() - timedelta(days=1, minutes=1)
            session.execute(sa.update(AccountDomain).values(last_checked_at=yesterday))
        checks.enqueue_checks({})
    run_jobs(app)


def test_domain_check_ends_verification_after_14_days_without_record(
    app: Flask, cast: Cast, dns: NameServer
) -> None:
    domain = prove(dns, cast.alice)
    day_passes(app)
    assert state(cast.alice, domain) == "verified"
    saved, dns.texts = dns.texts, {}
    seen = []
    for _ in range(4):
        day_passes(app)
        seen.append(state(cast.alice, domain))
    assert seen == ["verified", "verified", "failing", "failing"]
    assert len(outbox(app)) == 1
    dns.texts = saved
    day_passes(app)
    assert state(cast.alice, domain) == "verified"
    dns.texts = {}
    for _ in range(14):
        day_passes(app)
    assert state(cast.alice, domain) == "pending"
    assert owners(app) == {}
    assert [mail["To"] for mail in outbox(app)] == [cast.alice.email] * 3
    asked = len(dns.asked)
    day_passes(app)
    assert len(dns.asked) == asked


@pytest.mark.one_database
def test_domain_check_with_failing_dns_keeps_verification(
    app: Flask, cast: Cast, dns: NameServer
) -> None:
    domain = prove(dns, cast.alice)
    dns.rcode = dns_rcode("SERVFAIL")
    for _ in range(16):
        day_passes(app)
    assert state(cast.alice, domain) == "failing"
    assert owners(app) == {"acme.example": cast.alice.account_id}
    assert len(outbox(app)) == 1


@pytest.mark.one_database
def test_domain_checks_run_once_a_day(app: Flask, cast: Cast, dns: NameServer) -> None:
    prove(dns, cast.alice)
    with app.app_context():
        checks.enqueue_checks({})
    run_jobs(app)
    assert len(dns.asked) == 1


@pytest.mark.one_database
def test_domain_verification_attempts_are_limited(
    cast: Cast, dns: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "VERIFICATIONS", checks.Limit("few", 2, 3600))
    domain = add(cast.alice)
    statuses = [verify(cast.alice, domain).status_code for _ in range(3)]
    assert statuses == [409, 409, 429]


@pytest.mark.one_database
def test_domain_limit_per_account_is_409(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.accounts.domains.service.MAX_DOMAINS", 2)
    for name in ("a.example", "b.example"):
        add(cast.alice, name)
    assert cast.alice.post("account/domains", {"domain": "b.example"}).status_code == 409
    assert cast.alice.post("account/domains", {"domain": "c.example"}).status_code == 409
    add(cast.charlie, "c.example")


SETTINGS: list[tuple[dict[str, Any], int]] = [
    ({"auto_join": True, "auto_join_role": "editor"}, 200),
    ({"auto_join_role": None}, 200),
    ({"auto_join_role": "admin"}, 400),
    ({"auto_join_role": "nobody"}, 400),
    ({"auto_join_role": "x" * 101}, 422),
    ({"auto_join": 1}, 422),
    ({"sso_only": True}, 400),
    ({"verified_at": "2026-01-01T00:00:00Z"}, 422),
    ({"domain": "globex.example"}, 422),
    ({"token": "x"}, 422),
]


@pytest.mark.one_database
def test_domain_settings_validation(cast: Cast) -> None:
    path = f"account/domains/{add(cast.alice)['id']}"
    assert [cast.alice.patch(path, body).status_code for body, _ in SETTINGS] == [
        status for _, status in SETTINGS
    ]


@pytest.mark.one_database
def test_domain_changes_require_recent_sign_in_of_admin(app: Flask, cast: Cast) -> None:
    domain = add(cast.alice)
    key = cast.alice.post("api-keys", {"name": "x"}).json["key"]
    by_key = Caller(app, **{"X-API-Key": key})
    assert by_key.get("account/domains").status_code == 200
    one = f"account/domains/{domain['id']}"
    calls = [
        ("POST", "account/domains", {"domain": "b.example"}),
        ("POST", f"{one}/verify", None),
        ("PATCH", one, {"auto_join": True}),
        ("DELETE", one, None),
    ]
    assert [by_key(*call).status_code for call in calls] == [403] * 4
    assert [cast.bob(*call).status_code for call in calls] == [403] * 4
    assert state(cast.alice, domain) == "pending"


@pytest.mark.one_database
def test_domain_auto_join_in_system_account_is_400(cast: Cast) -> None:
    domain = add(cast.root, "system.example")
    answer = cast.root.patch(f"account/domains/{domain['id']}", {"auto_join": True})
    assert answer.status_code == 400
