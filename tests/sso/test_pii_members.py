"""Nobody outside `pii_access` becomes a member of it, or comes in as one."""

from __future__ import annotations

from typing import Any

import pytest
import time_machine
from flask import Flask

from app import clock, db
from app.accounts import service as accounts
from app.accounts.models import ADMIN, PII_GROUP, SYSTEM_ACCOUNT_ID
from app.sso.models import ProviderSetting
from tests.builders import PASSWORD, Caller, make_user
from tests.console.browser import Browser
from tests.mailbox import body_of, outbox, run_jobs
from tests.sso.flows import Stage

ROWS = "admin/configuration"


@pytest.fixture
def dan(stage: Stage) -> Caller:
    """An admin of acme outside pii_access."""
    acme = stage.cast.alice.account_id
    return Caller(stage.app, make_user(stage.app, acme, "dan@x.example", ADMIN))


def admitted(stage: Stage, email: str = "pia@system.example") -> Caller:
    """A superadmin in the system account's pii_access."""
    user = make_user(stage.app, SYSTEM_ACCOUNT_ID, email, ADMIN)
    with stage.app.app_context():
        accounts.join_group(db.db.session.merge(user), PII_GROUP)
    return Caller(stage.app, user)


def as_alice(stage: Stage, subject: str = "g-1") -> Any:
    """A sign-in that a provider says is alice's."""
    stage.provider.who |= {"sub": subject, "email": stage.cast.alice.email}
    return stage.sign_in()


def refused(stage: Stage, answer: Any) -> None:
    assert (answer.status_code, answer.json["error"]) == (403, "not_invited")
    assert stage.last_refusal()[0] == "pii_access"


def pii_group(caller: Caller) -> str:
    (found,) = caller.get("groups?search=pii_access").json["items"]
    return str(found["id"])


def group_names(caller: Caller, user_id: str) -> list[str]:
    user = caller.get(f"account/users/{user_id}").json
    return [one["name"] if isinstance(one, dict) else one for one in user["groups"]]


def mails(app: Flask, subject: str) -> list[tuple[str, str]]:
    """The addressee and the text of the mails with that in their subject."""
    run_jobs(app)
    found = [one for one in outbox(app) if subject in one["Subject"]]
    return [(one["To"], body_of(one)) for one in found]


def test_pii_access_member_cannot_sign_in_by_provider_of_non_member(
    stage: Stage, dan: Caller
) -> None:
    made = stage.oauth(dan)
    assert made["admits_pii_members"] is False
    for _ in range(3):
        refused(stage, as_alice(stage))
    told = mails(stage.app, "was refused")  # once a day, however often it is tried
    assert [to for to, _ in told] == [stage.cast.alice.email]
    assert "with google as a member of the group pii_access" in told[0][1]
    with time_machine.travel(clock.now().timestamp() + 90_000):
        refused(stage, as_alice(stage))
        assert len(mails(stage.app, "was refused")) == 2
    # Everybody else signs in by it, and members do once one of them stands for the settings.
    stage.provider.who |= {"sub": "g-2", "email": stage.cast.bob.email}
    assert stage.traded(stage.sign_in())["user"]["id"] == stage.cast.bob.id
    one, confirmed = f"{ROWS}/{made['id']}", {"admits_pii_members": True}
    for outsider in (dan, stage.cast.root.acting_in("acme")):
        assert outsider.patch(one, confirmed).status_code == 403
    assert stage.cast.alice.patch(one, {"display_name": "G"}).json["admits_pii_members"] is False
    assert stage.cast.alice.patch(one, confirmed).json["admits_pii_members"] is True
    assert stage.traded(as_alice(stage))["user"]["id"] == stage.cast.alice.id


def test_pii_access_member_cannot_sign_in_by_provider_outsider_changed(
    stage: Stage, dan: Caller
) -> None:
    made = stage.oauth(stage.cast.alice)
    one = f"{ROWS}/{made['id']}"
    assert stage.traded(as_alice(stage))["user"]["id"] == stage.cast.alice.id
    # What says nothing of who somebody is, anybody may change.
    for harmless in ({"priority": 1, "enabled": True}, {"config": {"default_role": "editor"}}):
        assert dan.patch(one, harmless).json["admits_pii_members"] is True
    same = {"config": stage.provider.config()}
    assert dan.patch(one, same).json["admits_pii_members"] is True
    assert stage.traded(as_alice(stage))["user"]["id"] == stage.cast.alice.id
    moved = {"config": {"jwks_url": f"{stage.provider.url}/keys?mine"}}
    stage.provider.answers["/keys?mine"] = stage.provider._asked("/keys")[1]
    assert dan.patch(one, moved).json["admits_pii_members"] is False
    refused(stage, as_alice(stage))
    # Moved back it is still what dan made of it.
    assert dan.patch(one, same).json["admits_pii_members"] is False
    refused(stage, as_alice(stage))


def test_provider_from_before_pii_check_admits_members_until_changed(
    stage: Stage, dan: Caller
) -> None:
    made = stage.oauth(dan)
    with stage.app.app_context(), db.transaction() as session:
        row = session.get_one(ProviderSetting, (stage.cast.alice.account_id, made["id"]))
        row.admits_pii_members = None
    assert dan.get(f"{ROWS}/{made['id']}").json["admits_pii_members"] is True
    assert stage.traded(as_alice(stage))["user"]["id"] == stage.cast.alice.id
    dan.patch(f"{ROWS}/{made['id']}", {"config": {"client_id": "another"}})
    dan.patch(f"{ROWS}/{made['id']}", {"config": stage.provider.config()})
    refused(stage, as_alice(stage))


def test_pii_access_member_cannot_sign_in_by_saml_of_non_member(stage: Stage, dan: Caller) -> None:
    stage.saml(dan)
    answer = stage.assert_in(subject=stage.cast.alice.email)
    refused(stage, answer)
    assert stage.traded(stage.assert_in())["isNewUser"] is True


def test_pii_access_invitation_needs_trusted_provider(stage: Stage, dan: Caller) -> None:
    made = stage.oauth(dan)
    invited = {"email": "dora@acme.example", "groups": [PII_GROUP]}
    assert stage.cast.alice.post("invitations", invited).status_code == 201
    refused(stage, stage.sign_in())
    stage.cast.alice.patch(f"{ROWS}/{made['id']}", {"admits_pii_members": True})
    assert PII_GROUP in str(stage.traded(stage.sign_in())["user"]["groups"])


def test_pii_access_join_ends_sessions_begun_by_untrusted_provider(
    stage: Stage, dan: Caller
) -> None:
    stage.oauth(dan)
    stage.provider.who |= {"email": stage.cast.bob.email}
    signed_in = stage.traded(stage.sign_in())
    thief = Caller(stage.app, Authorization=f"Bearer {signed_in['token']}")
    key = thief.post("api-keys", {"name": "key"}).json["key"]
    again = stage.sign_in()  # its code is not traded yet
    path = f"groups/{pii_group(stage.cast.alice)}/users"
    assert stage.cast.alice.post(path, {"user_id": stage.cast.bob.id}).status_code == 200
    for credential in (thief, Caller(stage.app, Authorization=f"Bearer {key}")):
        assert credential.get("auth/me").status_code == 401
    renewed = stage.anyone.post("auth/refresh", {"refresh_token": signed_in["refresh_token"]})
    assert renewed.status_code == 401
    code = again.headers["Location"].partition("code=")[2].partition("&")[0]
    assert stage.anyone.post("auth/exchange", {"code": code}).status_code == 400
    refused(stage, stage.sign_in())
    # Who never signed in by such settings keeps what there is.
    login = {"account": "acme", "email": stage.cast.bob.email, "password": PASSWORD}
    assert stage.anyone.post("auth/login", login).status_code == 200


def test_provider_set_by_superadmin_is_trusted_by_system_pii_access(stage: Stage) -> None:
    root, pia = stage.cast.root, admitted(stage)
    stage.cast.alice.patch("account", {"sso_provisioning": None})
    # Of an account: as everybody's.
    made = stage.oauth(root.acting_in("acme"))
    assert made["admits_pii_members"] is False
    refused(stage, as_alice(stage))
    confirmed = {"admits_pii_members": True}
    one = f"{ROWS}/{made['id']}"
    assert pia.acting_in("acme").patch(one, confirmed).status_code == 200
    assert stage.traded(as_alice(stage))["user"]["id"] == stage.cast.alice.id
    assert pia.acting_in("acme").delete(one).status_code == 204
    # Of the system: they are the operator's in accounts, and nobody's among superadmins.
    assert stage.oauth(root)["admits_pii_members"] is False
    assert stage.traded(as_alice(stage))["user"]["id"] == stage.cast.alice.id
    back = {"allowed_redirect_uris": [stage.client], "default_redirect_uri": stage.client}
    assert root.acting_in("system").patch("account", back).status_code == 200
    stage.provider.who |= {"sub": "g-3", "email": pia.email}
    answer = stage.sign_in(account="system")
    assert (answer.status_code, answer.json["error"]) == (403, "not_invited")
    stage.provider.who |= {"sub": "g-4", "email": root.email}
    assert stage.traded(stage.sign_in(account="system"))["user"]["id"] == root.id


def test_pii_access_member_is_not_returned_to_redirect_uri_of_non_member(
    stage: Stage, dan: Caller
) -> None:
    alice, thief = stage.cast.alice, "https://thief.example/in"
    stage.oauth(alice)
    stage.saml(alice)
    allowed = {"allowed_redirect_uris": [stage.client, thief]}
    assert dan.patch("account", allowed).status_code == 200
    stage.provider.who["email"] = alice.email
    refused(stage, stage.sign_in(redirect_uri=thief))
    assert stage.traded(stage.sign_in())["user"]["id"] == alice.id  # where she returned before
    body = {"account": "acme", "redirect_uri": thief, "state": "mine"}
    begun = stage.anyone.post("auth/oauth/google/authorize", body).json
    refused(stage, stage.back(stage.browser(), begun["url"]))
    # As the usual address it is no better, and others may go there.
    assert dan.patch("account", {"default_redirect_uri": thief}).status_code == 200
    refused(stage, stage.sign_in())
    refused(stage, stage.assert_in(subject=alice.email))
    assert stage.traded(stage.assert_in())["isNewUser"] is True
    # A member who changes something else does not stand for it; one who sends the list does.
    alice.patch("account", {"name": "Acme Ltd", "allowed_redirect_uris": [stage.client]})
    refused(stage, stage.sign_in(redirect_uri=thief))
    alice.patch("account", allowed)
    answer = stage.sign_in(redirect_uri=thief)
    assert stage.traded(answer)["user"]["id"] == alice.id
    row = alice.get(ROWS).json["items"][0]
    other = {"allowed_redirect_uris": ["https://other.example/in"]}
    assert dan.patch(f"{ROWS}/{row['id']}", {"config": other}).json["admits_pii_members"] is False


def test_console_provider_page_lets_pii_access_member_confirm(stage: Stage, dan: Caller) -> None:
    made = stage.oauth(dan)
    page = f"sso/{stage.cast.alice.account_id}/{made['id']}"
    said = "Members of pii_access cannot sign in with this provider"
    box = 'name="admits_pii_members"'
    shown = Browser(stage.app, dan).get(page).text
    assert said in shown
    assert box not in shown
    member = Browser(stage.app, stage.cast.alice)
    assert box in member.get(page).text
    form = {"display_name": "Google", "enabled": "true", **stage.provider.config()}
    assert "Saved." in member.done(page, **form)
    assert said in member.get(page).text
    assert "Saved." in member.done(page, **form, admits_pii_members="true")
    assert said not in member.get(page).text
    assert stage.traded(as_alice(stage))["user"]["id"] == stage.cast.alice.id


def test_pii_access_membership_ends_with_email_change_by_non_member(
    stage: Stage, dan: Caller
) -> None:
    alice = stage.cast.alice
    pia = make_user(stage.app, alice.account_id, "pia@acme.example")
    path = f"groups/{pii_group(alice)}/users"
    assert alice.post(path, {"user_id": pia.id}).status_code == 200
    one = f"account/users/{pia.id}"
    # Another spelling is the same mailbox, and a member may give a member another address.
    assert dan.patch(one, {"email": "PIA@acme.example", "name": "Pia"}).status_code == 200
    assert group_names(dan, pia.id) == [PII_GROUP]
    assert alice.patch(one, {"email": "pia-2@acme.example"}).status_code == 200
    assert group_names(dan, pia.id) == [PII_GROUP]
    assert dan.patch(one, {"email": "dan-2@x.example"}).status_code == 200
    assert group_names(dan, pia.id) == []
    told = mails(stage.app, "removed from pii_access")
    assert sorted(to for to, _ in told) == [alice.email, "pia-2@acme.example"]
    assert all("new address" in text for _, text in told)
    entries = stage.cast.root.get("audit-logs?table_name=group_members&limit=500").json["items"]
    removed = [one for one in entries if one["operation"] == "DELETE"]
    assert {(one["user_id"], one["record_id"].rpartition("/")[2]) for one in removed} == {
        (dan.id, pia.id)
    }
    # The last member, too, and a superadmin is somebody outside, unless the system's group knows.
    own = f"users/{alice.id}"
    assert admitted(stage).patch(own, {"email": "al@acme.example"}).status_code == 200
    assert group_names(dan, alice.id) == [PII_GROUP]
    assert stage.cast.root.patch(own, {"email": "alice-2@acme.example"}).status_code == 200
    assert group_names(dan, alice.id) == []
    assert dan.post(path, {"user_id": dan.id}).status_code == 403
    again = stage.cast.root.acting_in("acme").post(path, {"user_id": alice.id})
    assert again.status_code == 200


def test_pii_access_membership_ends_with_password_set_by_non_member(stage: Stage) -> None:
    root, pia = stage.cast.root, admitted(stage)
    password = {"new_password": "Another-horse-1"}
    for member in (pia, stage.cast.alice):
        assert root.put(f"users/{member.id}/password", {"send_reset_link": True}).status_code == 200
        assert PII_GROUP in str(root.get(f"users/{member.id}").json["groups"])
        assert root.put(f"users/{member.id}/password", password).status_code == 200
        assert PII_GROUP not in str(root.get(f"users/{member.id}").json["groups"])
    told = mails(stage.app, "removed from pii_access")
    assert sorted(to for to, _ in told) == [stage.cast.alice.email, pia.email]
    assert all("new password" in text for _, text in told)
    # By the console, too; and a member may.
    other, third = admitted(stage, "other@system.example"), admitted(stage, "third@system.example")
    assert other.put(f"users/{third.id}/password", password).status_code == 200
    assert PII_GROUP in str(root.get(f"users/{third.id}").json["groups"])
    Browser(stage.app, root).done(f"users/{third.id}/password", **password)
    assert PII_GROUP not in str(root.get(f"users/{third.id}").json["groups"])


def test_pii_access_member_cannot_be_added_by_api_key(stage: Stage) -> None:
    alice = stage.cast.alice
    secret = alice.post("api-keys", {"name": "key"}).json["key"]
    key = Caller(stage.app, Authorization=f"Bearer {secret}")
    group, guest = pii_group(alice), "guest@acme.example"
    assert key.post(f"groups/{group}/users", {"user_id": stage.cast.bob.id}).status_code == 403
    upper = key.post(f"groups/{group.upper()}/members", {"user_id": stage.cast.bob.id})
    assert upper.status_code in (403, 404)
    for named in (group, PII_GROUP):
        assert key.post("invitations", {"email": guest, "groups": [named]}).status_code == 403
    made = alice.post("invitations", {"email": guest, "groups": [group]}).json
    assert key.post(f"invitations/{made['id']}/resend").status_code == 403
    assert group_names(alice, stage.cast.bob.id) == []
    assert key.post("invitations", {"email": "other@acme.example"}).status_code == 201
