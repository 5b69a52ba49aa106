"""Invitations: a mailed link by which somebody joins an account."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db
from app.accounts.models import Group, User
from app.auth.models import Invitation
from app.jobs import Job
from tests.builders import PASSWORD, Caller, Cast, make_account, make_user
from tests.mailbox import body_of, link_in, outbox, run_jobs, token_in
from tests.parallel import at_once

GUEST = "guest@acme.example"
LATE = timedelta(hours=48, seconds=1)


def invite(admin: Caller, email: str = GUEST, **body: Any) -> dict[str, Any]:
    answer = admin.post("invitations", {"email": email, **body})
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def accept(caller: Caller, token: str, **body: Any) -> Any:
    return caller.post(f"invitations/{token}/accept", {"password": PASSWORD, **body})


def outcome(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json["error"]


def mailed(app: Flask) -> str:
    """The token in the newest invitation that was mailed."""
    run_jobs(app)
    return link_in(outbox(app)[-1]).partition("token=")[2]


def make_group(app: Flask, account_id: str, name: str) -> str:
    with app.app_context(), db.transaction() as session:
        group = Group(account_id=account_id, name=name)
        session.add(group)
        session.flush()
        return str(group.id)


def expire(app: Flask, invitation_id: str) -> None:
    with app.app_context(), db.transaction() as session:
        invitation = session.query(Invitation).filter_by(id=invitation_id).one()
        invitation.expires_at = clock.now()


def members(app: Flask) -> list[str]:
    with app.app_context():
        return list(db.db.session.scalars(sa.select(User.email).where(User.email == GUEST)))


def test_invitation_is_mailed_and_creates_user(app: Flask, alice: Caller, anyone: Caller) -> None:
    made = invite(alice)
    assert (made["email"], made["status"], made["role"]) == (GUEST, "pending", "viewer")
    assert (made["account_id"], made["invited_by"]) == (alice.account_id, alice.id)
    assert outbox(app) == []
    run_jobs(app)
    (mail,) = outbox(app)
    assert mail["To"] == GUEST
    assert "Acme" in body_of(mail)
    token = link_in(mail).removeprefix("http://atrium.test/welcome/invitation?token=")
    assert token not in ("", made["token"])
    answer = accept(anyone, token, name="Gus")
    assert answer.status_code == 200
    user = answer.json["user"]
    assert (user["email"], user["name"], user["role"]) == (GUEST, "Gus", "viewer")
    assert (user["account_id"], user["email_verified"]) == (alice.account_id, True)
    (shown,) = alice.get("invitations").json["items"]
    assert (shown["status"], shown["accepted_at"] is None) == ("accepted", False)


def test_invitation_token_shown_to_inviter_does_not_verify_email(
    app: Flask, alice: Caller, anyone: Caller
) -> None:
    made = invite(alice, "anybody@bigbank.example")
    accepted = accept(anyone, made["token"])
    assert (accepted.status_code, accepted.json["user"]["email_verified"]) == (200, False)
    # Signed in it is, as somebody; but nobody signs in under the address before it is proved.
    bearer = {"Authorization": f"Bearer {accepted.json['token']}"}
    assert anyone.get("auth/me", headers=bearer).json["email_verified"] is False
    credentials = {"email": "anybody@bigbank.example", "password": PASSWORD, "account": "acme"}
    assert outcome(anyone.post("auth/login", credentials)) == (401, "email_not_verified")
    run_jobs(app)
    proof = token_in(outbox(app)[-1])
    assert anyone.post("auth/verify-email", {"token": proof}).status_code == 200
    assert anyone.post("auth/login", credentials).json["user"]["email_verified"] is True
    # Sent again, the answer and the mail have two tokens as well.
    made = invite(alice)
    again = alice.post(f"invitations/{made['id']}/resend").json["token"]
    token = mailed(app)
    assert token != again
    assert accept(anyone, token).json["user"]["email_verified"] is True
    assert outcome(accept(anyone, again)) == (400, "invalid_token")


def test_invitation_from_older_release_verifies_email(
    app: Flask, alice: Caller, anyone: Caller
) -> None:
    invite(alice)
    token = mailed(app)
    with app.app_context(), db.transaction() as session:
        session.execute(sa.update(Invitation.__table__).values(shown_token_hash=None))
    assert accept(anyone, token).json["user"]["email_verified"] is True


def test_invitation_acceptance_response_equals_login_response(
    app: Flask, alice: Caller, anyone: Caller
) -> None:
    invite(alice)
    accepted = accept(anyone, mailed(app))
    login = anyone.post("auth/login", {"account": "acme", "email": GUEST, "password": PASSWORD})
    assert set(accepted.json) == set(login.json)
    assert accepted.json["account"] == login.json["account"]
    assert accepted.headers["Cache-Control"] == "no-store"
    cookie = accepted.headers["Set-Cookie"]
    assert cookie.startswith(f"service_refresh={accepted.json['refresh_token']};")
    assert "HttpOnly" in cookie
    bearer = {"Authorization": f"Bearer {accepted.json['token']}"}
    assert anyone.get("auth/me", headers=bearer).json["email"] == GUEST
    body = {"refresh_token": accepted.json["refresh_token"]}
    assert anyone.post("auth/refresh", body).status_code == 200


@pytest.mark.parametrize("body", [{"role_id": 2}, {"role": "editor"}])
def test_invitation_role_is_given_to_user(
    alice: Caller, anyone: Caller, body: dict[str, Any]
) -> None:
    made = invite(alice, **body)
    assert (made["role"], made["role_id"]) == ("editor", 2)
    assert accept(anyone, made["token"]).json["user"]["role"] == "editor"


@pytest.mark.parametrize("named", ["id", "name", "both"])
def test_invitation_groups_are_given_to_user(
    app: Flask, alice: Caller, anyone: Caller, named: str
) -> None:
    group_id = make_group(app, alice.account_id, "finance")
    groups = {"id": [group_id], "name": ["finance"], "both": [group_id, "finance"]}[named]
    made = invite(alice, groups=groups)
    assert made["groups"] == [group_id]
    assert "finance" in str(accept(anyone, made["token"]).json["user"]["groups"])


def test_invitation_reports_all_unknown_values_at_once(app: Flask, cast: Cast) -> None:
    elsewhere = make_group(app, cast.charlie.account_id, "finance")
    body = {"email": "no address", "role": "emperor", "groups": ["none", elsewhere, "finance"]}
    answer = cast.alice.post("invitations", body)
    assert answer.status_code == 400
    assert [(d["field"], d["code"]) for d in answer.json["details"]] == [
        ("email", "invalid_email"),
        ("role", "invalid_reference"),
        *[("groups", "invalid_reference")] * 3,
    ]
    unknown = cast.alice.post("invitations", {"email": GUEST, "role_id": 99})
    assert [d["field"] for d in unknown.json["details"]] == ["role_id"]
    assert cast.alice.get("invitations").json["total"] == 0
    assert run_jobs(app) == 0


@pytest.mark.parametrize("email", ["bob@acme.example", " BOB@ACME.example "])
def test_invitation_of_existing_member_is_409(alice: Caller, email: str) -> None:
    answer = alice.post("invitations", {"email": email})
    assert (answer.status_code, answer.json["field"]) == (409, "email")


def test_invitation_acceptance_by_member_who_joined_meanwhile_is_409(
    app: Flask, alice: Caller, anyone: Caller
) -> None:
    token = invite(alice)["token"]
    make_user(app, alice.account_id, GUEST)
    assert outcome(accept(anyone, token)) == (409, "conflict")
    assert alice.get("invitations").json["items"][0]["status"] == "pending"


def test_invitation_resend_voids_old_token(app: Flask, alice: Caller, anyone: Caller) -> None:
    made = invite(alice)
    expire(app, made["id"])
    again = alice.post(f"invitations/{made['id']}/resend").json
    assert (again["id"], again["status"]) == (made["id"], "pending")
    assert again["token"] != made["token"]
    run_jobs(app)
    assert len(outbox(app)) == 1  # the older mail is not sent any more
    assert anyone.get(f"invitations/{made['token']}").status_code == 404
    assert accept(anyone, made["token"]).status_code == 404
    assert accept(anyone, again["token"]).status_code == 200


def test_invitation_is_visible_to_token_holder(alice: Caller, anyone: Caller) -> None:
    made = invite(alice)
    seen = anyone.get(f"invitations/{made['token']}")
    assert seen.json == {
        "email": GUEST,
        "account_name": "Acme",
        "invited_by_name": "alice@acme.example",
        "expires_at": made["expires_at"],
        "status": "pending",
        "is_valid": True,
    }
    assert anyone("HEAD", f"invitations/{made['token']}").status_code == 200
    assert accept(anyone, made["token"]).status_code == 200
    after = anyone.get(f"invitations/{made['token']}").json
    assert (after["status"], after["is_valid"]) == ("accepted", False)


@pytest.mark.parametrize("token", ["x", "AA0001-", "AA0001-x", "%00", "AA0001-%00", "é"])
def test_invitation_with_unknown_token_is_404(anyone: Caller, alice: Caller, token: str) -> None:
    invite(alice)
    assert anyone.get(f"invitations/{token}").status_code == 404
    assert accept(anyone, token).status_code == 404


def test_invitation_acceptance_with_weak_password_keeps_token(
    alice: Caller, anyone: Caller
) -> None:
    token = invite(alice)["token"]
    weak = accept(anyone, token, password="weak", name="two\nlines")
    assert weak.status_code == 400
    codes = {(d["field"], d["code"]) for d in weak.json["details"]}
    assert codes == {("password", "password_too_weak"), ("name", "name_invalid")}
    assert accept(anyone, token).status_code == 200


@pytest.mark.usefixtures("real_hashes")
def test_invitation_concurrent_acceptances_create_one_user(
    app: Flask, alice: Caller, anyone: Caller
) -> None:
    token = invite(alice)["token"]
    answers = at_once(20, lambda _: accept(anyone, token))
    assert sorted(answer.status_code for answer in answers) == [200] + [400] * 19
    assert {a.json["error"] for a in answers if a.status_code == 400} == {"invalid_token"}
    assert members(app) == [GUEST]


def test_invitation_expires_after_48_hours(app: Flask, alice: Caller, anyone: Caller) -> None:
    token = invite(alice)["token"]
    with time_machine.travel(clock.now() + LATE):
        assert outcome(accept(anyone, token)) == (400, "invalid_token")
        assert anyone.get(f"invitations/{token}").json["status"] == "expired"
        assert members(app) == []
    with time_machine.travel(clock.now() + LATE - timedelta(minutes=1)):
        assert accept(anyone, token).status_code == 200


def test_invitation_cancelled_is_invalid_token_and_not_mailed(
    app: Flask, alice: Caller, anyone: Caller
) -> None:
    made = invite(alice)
    assert alice.delete(f"invitations/{made['id']}").status_code == 204
    assert run_jobs(app) == 1
    assert outbox(app) == []
    assert outcome(accept(anyone, made["token"])) == (400, "invalid_token")
    assert anyone.get(f"invitations/{made['token']}").json["status"] == "cancelled"
    assert alice.post(f"invitations/{made['id']}/resend").status_code == 409
    assert members(app) == []


def test_invitation_accepted_cannot_be_cancelled_or_resent(alice: Caller, anyone: Caller) -> None:
    made = invite(alice)
    accept(anyone, made["token"])
    assert alice.delete(f"invitations/{made['id']}").status_code == 409
    assert alice.post(f"invitations/{made['id']}/resend").status_code == 409
    assert outcome(accept(anyone, made["token"])) == (400, "invalid_token")


@pytest.mark.parametrize("suspended", [True, False], ids=["suspended", "closed"])
def test_invitation_to_suspended_or_deleted_account_is_404(
    app: Flask, cast: Cast, anyone: Caller, suspended: bool
) -> None:
    token = invite(cast.alice)["token"]
    path = f"accounts/{cast.alice.account_id}"
    if suspended:
        assert cast.root.patch(path, {"is_active": False}).status_code == 200
    else:
        assert cast.root.delete(path).status_code == 204
    assert accept(anyone, token).status_code == 404
    assert anyone.get(f"invitations/{token}").status_code == 404
    assert run_jobs(app) > 0
    assert outbox(app) == []
    assert members(app) == []
    if suspended:
        cast.root.patch(path, {"is_active": True})
        assert accept(anyone, token).status_code == 200


def test_invitation_list_shows_every_state_and_no_token(
    app: Flask, alice: Caller, anyone: Caller
) -> None:
    expire(app, invite(alice, "expired@acme.example")["id"])
    accept(anyone, invite(alice, "accepted@acme.example")["token"])
    alice.delete(f"invitations/{invite(alice, 'cancelled@acme.example')['id']}")
    token = invite(alice, "pending@acme.example")["token"]
    listed = alice.get("invitations")
    assert listed.json["items"] == listed.json["invitations"]
    assert token not in listed.text
    states = [(one["email"].partition("@")[0], one["status"]) for one in listed.json["items"]]
    assert sorted(states) == [(s, s) for s in ("accepted", "cancelled", "expired", "pending")]
    for state in ("accepted", "cancelled", "expired", "pending"):
        for name in ("status", "status_filter"):
            found = alice.get(f"invitations?{name}={state}").json
            assert [one["status"] for one in found["items"]] == [state]
            assert found["total"] == 1
    assert alice.get("invitations?status=none").status_code == 422


@pytest.mark.parametrize(
    ("who", "listing", "touching"),
    [("alice", 200, 200), ("bob", 403, 403), ("charlie", 200, 404), ("anyone", 401, 401)],
)
def test_invitation_management_status_per_caller(
    app: Flask, cast: Cast, who: str, listing: int, touching: int
) -> None:
    made = invite(cast.alice)
    caller: Caller = Caller(app) if who == "anyone" else getattr(cast, who)
    assert caller.get("invitations").status_code == listing
    created = caller.post("invitations", {"email": "other@x.example"}).status_code
    assert created == (201 if listing == 200 else listing)
    assert caller.post(f"invitations/{made['id']}/resend").status_code == touching
    cancelled = caller.delete(f"invitations/{made['id']}").status_code
    assert cancelled == (204 if touching == 200 else touching)
    if who == "charlie":
        assert made["id"] not in caller.get("invitations").text


def test_invitation_by_superadmin_goes_into_acting_account(
    app: Flask, cast: Cast, anyone: Caller
) -> None:
    token = invite(cast.root.acting_in("acme"))["token"]
    assert anyone.get(f"invitations/{token}").json["invited_by_name"] is None
    user = accept(anyone, token).json["user"]
    assert user["account_id"] == cast.alice.account_id
    everywhere = cast.root.acting_in("*")
    assert everywhere.get("invitations").json["total"] == 1
    assert everywhere.post("invitations", {"email": "x@y.example"}).status_code == 400


def test_invitation_list_account_id_parameter_equals_header(cast: Cast) -> None:
    acme, globex = invite(cast.alice), invite(cast.charlie)

    def listed(caller: Caller, named: str) -> list[str]:
        answer = caller.get(f"invitations?account_id={named}")
        assert answer.status_code == 200, answer.json
        return [one["id"] for one in answer.json["items"]]

    for root in (cast.root, cast.root.acting_in("globex")):
        assert listed(root, cast.alice.account_id) == listed(root, "acme") == [acme["id"]]
        assert listed(root, "system") == []
        assert sorted(listed(root, "*")) == sorted([acme["id"], globex["id"]])
        assert root.get("invitations?account_id=nowhere").status_code == 404
    assert listed(cast.alice, cast.alice.account_id) == [acme["id"]]
    for named in (cast.charlie.account_id, "*", "nowhere"):
        assert cast.alice.get(f"invitations?account_id={named}").status_code == 403
    text = cast.root.post("api-keys", {"name": "nightly"}).json["key"]
    key = Caller(cast.root.app, Authorization=f"Bearer {text}")
    assert key.get("invitations?account_id=acme").status_code == 403


def test_invitations_of_two_accounts_to_one_address(app: Flask, cast: Cast, anyone: Caller) -> None:
    tokens = [invite(caller)["token"] for caller in (cast.alice, cast.charlie)]
    assert [accept(anyone, token).status_code for token in tokens] == [200, 200]
    assert members(app) == [GUEST] * 2


def test_invitation_token_with_code_of_other_account_is_404(
    app: Flask, alice: Caller, anyone: Caller
) -> None:
    make_account(app, "initech")
    token = invite(alice)["token"]
    for code in ("AA0002", "AA0003", "SY0000"):
        assert accept(anyone, token.replace("AA0001", code)).status_code == 404


def test_invitation_token_is_stored_as_hash_only(app: Flask, alice: Caller) -> None:
    token = invite(alice)["token"]
    with app.app_context():
        row = db.db.session.execute(sa.select(Invitation.__table__)).one()
        job = db.db.session.execute(sa.select(Job.__table__)).one()
    assert job.kind == "auth.send_invitation"
    assert GUEST not in str(job)
    sent = mailed(app)
    digests = [hashlib.sha256(one.encode()).hexdigest() for one in (sent, token)]
    assert [row.token_hash, row.shown_token_hash] == digests
    listed = alice.get("invitations?status=pending").text
    for one in (sent, token):
        assert one.partition("-")[2] not in f"{row}{job}{listed}"
