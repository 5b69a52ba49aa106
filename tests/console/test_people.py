"""The console's pages of people, keys and profiles: who may open them, and what they do."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from html import unescape

import pytest
import sqlalchemy as sa
from flask import Flask
from werkzeug.test import TestResponse

from app import clock, create_app
from app.accounts import groups, roles
from app.auth.models import ApiKey
from app.db import transaction
from app.web import user_agents
from tests import builders
from tests.builders import PASSWORD, Caller, Cast
from tests.console.browser import HOSTILE, Browser, alert, beside, is_out, sign_in
from tests.mailbox import link_in, outbox, run_jobs

LAST_ADMIN = "The account&#39;s last admin cannot be deactivated, demoted or deleted."

NONE = "019a9f00-0000-7000-8000-00000000dead"
NEW_PASSWORD = "Correct-horse-2"

# Every page that a GET opens; {bob} and {group} are of acme.
OF_EVERYONE = ("keys", "keys/new", "profile")
OF_ADMINS = (
    "team",
    "team/invitations",
    "team/invite",
    "team/users/{bob}",
    "groups",
    "groups/new",
    "groups/{group}",
)
OF_SUPERADMINS = (
    "accounts",
    "accounts/new",
    "accounts/{acme}",
    "users",
    "users/new",
    "users/{bob}",
    "roles",
    "roles/new",
    "roles/1",
)
# Every path that a POST goes to, with the id of what belongs to acme.
OWNED_BY_ACME = (
    "team/users/{bob}/role",
    "team/users/{bob}/activate",
    "team/users/{bob}/deactivate",
    "team/users/{bob}/reset-link",
    "team/users/{bob}/remove",
    "team/users/{bob}/groups",
    "team/users/{bob}/groups/{group}/remove",
    "team/invitations/{invitation}/resend",
    "team/invitations/{invitation}/cancel",
    "groups/{group}/members",
    "groups/{group}/members/{alice}/remove",
    "groups/{group}/delete",
    "keys/{key}/revoke",
    "profile/sessions/{session}/end",
)


def test_console_page_access_per_role(app: Flask, cast: Cast, ids: dict[str, str]) -> None:
    ranks = {"bob": 1, "alice": 2, "root": 3}
    browsers = {name: Browser(app, getattr(cast, name)) for name in ranks}
    nobody = Browser(app)
    for needed, paths in enumerate((OF_EVERYONE, OF_ADMINS, OF_SUPERADMINS), 1):
        for path in paths:
            answer = nobody.get(path.format(**ids))
            assert (answer.status_code, "/console/sign-in" in answer.location) == (302, True)
            for name, rank in ranks.items():
                answer = browsers[name].get(path.format(**ids))
                # The system's own team has neither acme's users nor its groups.
                foreign = name == "root" and needed == 2 and "{" in path
                expected = 404 if foreign else 200 if rank >= needed else 403
                assert (answer.status_code, answer.mimetype) == (expected, "text/html"), (
                    name,
                    path,
                )


@pytest.mark.long
def test_console_navigation_links_only_to_allowed_pages(app: Flask, cast: Cast) -> None:
    for caller in (cast.bob, cast.alice, cast.root):
        browser = Browser(app, caller)
        home = browser.client.get("/console").text
        links = set(re.findall(r'href="/(console/[^"]*)"', home))
        assert {f"console/{one}" for one in ("keys", "profile")} <= links
        for link in links:
            assert browser.client.get(f"/{link}", follow_redirects=True).status_code == 200, link


@pytest.mark.long
def test_console_forms_require_csrf_token(app: Flask, cast: Cast, superadmin: Browser) -> None:
    posts = [rule for rule in app.url_map.iter_rules() if rule.rule.startswith("/console")]
    posts = [rule for rule in posts if "POST" in (rule.methods or ())]
    assert len(posts) >= 28
    for rule in posts:
        path = re.sub(r"<any\(([\w-]+).*?\):\w+>", r"\1", rule.rule)
        path = re.sub(r"<integer:\w+>", "2", re.sub(r"<(uuid:\w+|token)>", cast.bob.id, path))
        for browser in (superadmin.client, app.test_client()):
            answer = browser.post(path, data={"slug": "acme", "name": "x"})
            assert (answer.status_code, "has expired" in answer.text) == (400, True), path
    assert cast.root.get(f"users/{cast.bob.id}").json["is_active"]


def test_console_objects_of_other_account_are_404(
    app: Flask, cast: Cast, ids: dict[str, str]
) -> None:
    browser = Browser(app, cast.charlie)
    form = {"role": "admin", "email": cast.charlie.email}
    for path in OWNED_BY_ACME:
        for answer in (
            browser.send(path.format(**ids), **form),
            browser.send(path.format(**dict.fromkeys(ids, NONE)), **form),
            browser.send(path.format(**dict.fromkeys(ids, "1")), **form),
        ):
            assert (answer.status_code, answer.mimetype) == (404, "text/html"), path
            assert "acme" not in answer.text
    for path in ("team/users/{bob}", "groups/{group}", "groups/1"):
        assert browser.get(path.format(**ids)).status_code == 404
    assert cast.alice.get(f"account/users/{cast.bob.id}").json["role"] == "viewer"
    assert cast.alice.get(f"api-keys/{ids['key']}").json["is_revoked"] is False
    assert cast.alice.get("invitations?status=pending").json["total"] == 1


def test_console_pages_above_own_role_are_403(app: Flask, cast: Cast, ids: dict[str, str]) -> None:
    viewer, admin = Browser(app, cast.bob), Browser(app, cast.alice)
    for path in (path.format(**ids) for path in OWNED_BY_ACME[:10]):
        assert viewer.send(path, role="admin").status_code == 403, path
    for path in ("users/{bob}/remove", "accounts/{acme}/close", "accounts/{acme}/suspend"):
        for browser in (viewer, admin):
            assert browser.send(path.format(**ids), slug="acme").status_code == 403
    assert viewer.send(f"keys/{ids['key']}/revoke").status_code == 404


def test_console_invitation_acceptance_signs_in(app: Flask, cast: Cast, admin: Browser) -> None:
    group = cast.alice.post("groups", {"name": "finance"}).json["id"]
    page = admin.done("team/invite", email="dora@acme.example", role="editor", groups=group)
    assert "sent an invitation to dora@acme.example" in page
    assert "We have sent" not in admin.get("team").text
    run_jobs(app)
    path = link_in(outbox(app)[-1]).removeprefix("http://atrium.test")
    target, _, token = path.partition("?token=")
    dora = Browser(app)
    form = dora.get(path)
    assert form.status_code == 200
    assert "Join Acme" in form.text
    weak = dora.send(target, token=token, name="Dora", password="short")
    assert weak.status_code == 400
    assert "12 characters" in beside(weak, "password")
    assert 'value="Dora"' in weak.text
    assert "Welcome to Acme." in dora.done(target, token=token, name="Dora", password=NEW_PASSWORD)
    assert not is_out(dora.client)
    (user,) = cast.alice.get("account/users?search=dora").json["items"]
    assert (user["role"], user["groups"], user["name"]) == ("editor", ["finance"], "Dora")
    eve = dora.send(target, token=token, name="Eve", password=NEW_PASSWORD)
    for again in (dora.get(path), eve):
        assert again.status_code == 400
        assert "accepted" in alert(again)
    assert dora.get("/welcome/invitation?token=AA0001-none").status_code == 404


def test_console_invitation_resend_and_cancel(
    app: Flask, admin: Browser, ids: dict[str, str]
) -> None:
    run_jobs(app)
    old = link_in(outbox(app)[-1]).removeprefix("http://atrium.test")
    path = f"team/invitations/{ids['invitation']}"
    assert "The old one no longer works" in admin.done(f"{path}/resend")
    assert Browser(app).get(old).status_code == 404
    run_jobs(app)
    new = link_in(outbox(app)[-1]).removeprefix("http://atrium.test")
    assert Browser(app).get(new).status_code == 200
    assert "is cancelled" in admin.done(f"{path}/cancel")
    assert "cancelled" in alert(Browser(app).get(new))
    assert alert(admin.send(f"{path}/resend")) == "This invitation is cancelled."


def test_console_invitation_errors_are_shown_beside_fields(admin: Browser, cast: Cast) -> None:
    for email, status, message in (
        ("", 400, "Required."),
        ("dora", 400, "Not a valid email address."),
        ("d" * 400, 400, "At most 320 characters."),
        (cast.bob.email, 409, "This address belongs to a user of the account."),
    ):
        answer = admin.send("team/invite", email=email, role="viewer")
        assert (answer.status_code, beside(answer, "email")) == (status, message)
    unknown = admin.send("team/invite", email="dora@acme.example", role="viewer", groups="nowhere")
    assert (unknown.status_code, "no group nowhere" in beside(unknown, "groups")) == (400, True)
    answer = admin.send("team/invite", email="dora@acme.example", role="emperor")
    assert (answer.status_code, beside(answer, "role")) == (400, "There is no such role.")


def lines_beside(answer: TestResponse, name: str) -> list[str]:
    return beside(answer, name).splitlines()


def test_console_invitation_of_several_addresses(app: Flask, cast: Cast, admin: Browser) -> None:
    run_jobs(app)
    before = len(outbox(app))
    text = "dora@acme.example\r\n emil@acme.example, fay@acme.example\nDORA@acme.example"
    page = admin.done("team/invite", email=text, role="editor")
    assert "We have sent 3 invitations." in page
    run_jobs(app)
    mailed = [message["To"] for message in outbox(app)[before:]]
    assert sorted(mailed) == [f"{name}@acme.example" for name in ("dora", "emil", "fay")]
    made = cast.alice.get("invitations").json["items"][:3]
    assert {one["role"] for one in made} == {"editor"}


def test_console_invitation_of_several_addresses_is_all_or_nothing(
    app: Flask, cast: Cast, admin: Browser
) -> None:
    run_jobs(app)
    count, before = cast.alice.get("invitations").json["total"], len(outbox(app))
    text = f"dora@acme.example\nnobody\n{cast.bob.email}\n{HOSTILE.replace(' ', '')}"
    answer = admin.send("team/invite", email=text, role="editor")
    assert answer.status_code == 400
    assert lines_beside(answer, "email")[0] == "nobody: Not a valid email address."
    assert f"{cast.bob.email}: This address belongs to a user of the account." in (
        lines_beside(answer, "email")
    )
    assert len(lines_beside(answer, "email")) == 3
    assert "<script>alert" not in answer.text
    assert "dora@acme.example" in answer.text  # to be sent again
    many = "\n".join(f"user{n}@acme.example" for n in range(51))
    answer = admin.send("team/invite", email=many, role="editor")
    assert beside(answer, "email") == "At most 50 addresses at once."
    run_jobs(app)
    assert (cast.alice.get("invitations").json["total"], len(outbox(app))) == (count, before)


def test_console_invitation_over_mail_limit_names_the_address(
    app: Flask, admin: Browser, cast: Cast
) -> None:
    settings = replace(app.extensions["atrium.config"], login_rate_limit="on", mail_tries=1)
    app.extensions["atrium.config"] = settings
    assert cast.alice.post("invitations", {"email": "dora@acme.example"}).status_code == 201
    text = "dora@acme.example\nemil@acme.example"
    for _ in range(2):  # the other address is not counted
        answer = admin.send("team/invite", email=text, role="editor")
        assert lines_beside(answer, "email") == [
            "dora@acme.example: Too many attempts. Try again later."
        ]
    admin.done("team/invite", email="emil@acme.example", role="editor")


def test_console_team_member_change_and_removal(app: Flask, cast: Cast, admin: Browser) -> None:
    path, bob = f"team/users/{cast.bob.id}", Browser(app, cast.bob)
    assert "is editor now" in admin.done(f"{path}/role", role="editor")
    assert is_out(bob.client)
    assert "is deactivated" in admin.done(f"{path}/deactivate")
    assert sign_in(bob.client, cast.bob).status_code == 401
    assert "is active" in admin.done(f"{path}/activate")
    assert "a link to set a new password" in admin.done(f"{path}/reset-link")
    assert "is removed" in admin.done(f"{path}/remove")
    assert cast.alice.get(f"account/users/{cast.bob.id}").status_code == 404


def test_console_invitation_form_tells_of_groups_not_shown(
    app: Flask, cast: Cast, admin: Browser
) -> None:
    present = cast.alice.get("groups").json["total"]
    for expected, numbers in (("", range(present, 100)), ("1 more group is", [100])):
        with app.app_context():
            for n in numbers:
                groups.create(cast.alice.account_id, f"group {n}", None)
        told = re.findall(
            "([0-9]+ more groups? (?:is|are)) not shown", admin.get("team/invite").text
        )
        assert "".join(told) == expected


def test_console_role_input_with_many_roles_shows_present_role(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    path = f"users/{cast.bob.id}"
    assert '<select id="role"' in admin.get(f"team/{path}").text
    with app.app_context(), transaction():
        for n in range(100):
            roles.create(f"role {n}", None)
    assert "is role 99 now" in admin.done(f"team/{path}/role", role="role 99")
    for browser, page in ((admin, f"team/{path}"), (superadmin, path)):
        (field,) = re.findall('<(?:input|select) id="role"[^>]*>', browser.get(page).text)
        assert 'value="role 99"' in field, field
    for browser, page in ((admin, "team/invite"), (superadmin, "users/new")):
        (field,) = re.findall('<(?:input|select) id="role"[^>]*>', browser.get(page).text)
        assert 'value="viewer"' in field, field
    sent = {"account": "acme", "email": "dora@acme.example"}
    wrong = superadmin.send("users/new", **sent, role="role 100")
    assert (wrong.status_code, beside(wrong, "role")) == (400, "There is no such role.")
    assert "We have sent a link" in superadmin.done("users/new", **sent, role="role 99")


def test_console_self_lockout_is_403_and_last_admin_loss_is_409(
    cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    mine = f"users/{cast.alice.id}"
    for act in ("deactivate", "remove"):
        answer = admin.send(f"team/{mine}/{act}")
        assert (answer.status_code, "your own user" in alert(answer)) == (403, True)
        answer = superadmin.send(f"{mine}/{act}")
        assert (answer.status_code, alert(answer)) == (409, LAST_ADMIN)
    answer = superadmin.send(f"{mine}/role", role="viewer")
    assert (answer.status_code, alert(answer)) == (409, LAST_ADMIN)
    assert cast.alice.get("auth/me").json["role"] == "admin"


def test_console_group_creation_members_and_deletion(cast: Cast, admin: Browser) -> None:
    assert beside(admin.send("groups/new", name=" "), "name") == "Required."
    taken = admin.send("groups/new", name="pii_access")
    assert (taken.status_code, "group with this name" in beside(taken, "name")) == (409, True)
    assert "is created" in admin.done("groups/new", name="finance")
    group = cast.alice.get("groups?search=finance").json["items"][0]["id"]
    named = {"name": "money", "description": "Sees the figures."}
    assert "The group money is saved." in admin.done(f"groups/{group}", **named)
    assert cast.alice.get(f"groups/{group}").json.items() >= named.items()
    page = admin.done(f"groups/{group}", name="finance", description="")
    assert "<h1>finance</h1>" in page
    assert cast.alice.get(f"groups/{group}").json["description"] is None
    for name, status in {"": 400, "pii_access": 409, "x" * 101: 400}.items():
        wrong = admin.send(f"groups/{group}", name=name)
        assert (wrong.status_code, beside(wrong, "name") != "") == (status, True)
    stranger = admin.send(f"groups/{group}/members", email=cast.charlie.email)
    assert (stranger.status_code, "No user" in beside(stranger, "email")) == (400, True)
    assert "is now in the group" in admin.done(f"groups/{group}/members", email="BOB@acme.example")
    row = admin.get("groups?search=finance").text
    assert '<td data-label="Members" class="number">1</td>' in row
    assert "This group has no members" in admin.done(f"groups/{group}/members/{cast.bob.id}/remove")
    assert "is deleted" in admin.done(f"groups/{group}/delete")
    kept = cast.alice.get("groups").json["items"][0]["id"]
    assert admin.send(f"groups/{kept}/delete").status_code == 409
    assert "is saved" in admin.done(f"groups/{kept}", name="pii_access", description="Few.")
    assert admin.send(f"groups/{kept}", name="other").status_code == 409


def test_console_profile_name_change_and_email_verification(app: Flask, cast: Cast) -> None:
    viewer = Browser(app, cast.bob)
    assert "is saved" in viewer.done("profile", name="Bob", email=cast.bob.email)
    page = viewer.done("profile", name="Bob", email="robert@acme.example")
    assert "Follow the link in the mail to robert@acme.example" in page
    assert cast.bob.get("auth/me").json["email"] == cast.bob.email
    run_jobs(app)
    path = link_in(outbox(app)[-1]).partition("atrium.test")[2]
    assert viewer.client.get(path, headers={"Accept": "text/html"}).status_code == 200
    assert cast.bob.get("auth/me").json["email"] == cast.bob.email
    token = path.partition("token=")[2]
    assert viewer.send("/welcome/verify-email", token=token).status_code == 200
    assert "robert@acme.example" in viewer.get("profile").text
    wrong = viewer.send("profile", name="B" * 300, email="nowhere")
    assert (wrong.status_code, beside(wrong, "name")) == (400, "At most 200 characters.")


def test_console_password_change_ends_all_sessions(app: Flask, cast: Cast) -> None:
    here, elsewhere = Browser(app, cast.bob), Browser(app, cast.bob)
    wrong = here.send("profile/password", current_password="x", new_password="short")
    assert wrong.status_code == 400
    assert "is wrong" in beside(wrong, "current_password")
    assert "12 characters" in beside(wrong, "new_password")
    page = here.done("profile/password", current_password=PASSWORD, new_password=NEW_PASSWORD)
    assert "Sign in with the new one." in page
    assert is_out(here.client)
    assert is_out(elsewhere.client)
    assert sign_in(here.client, cast.bob, password=NEW_PASSWORD).status_code == 303


def test_console_profile_ends_one_session(app: Flask, cast: Cast) -> None:
    here, elsewhere = Browser(app, cast.bob), Browser(app, cast.bob)
    (other,) = re.findall(r"profile/sessions/([\w-]+)/end", here.get("profile").text)
    assert "The session has ended." in here.done(f"profile/sessions/{other}/end")
    assert is_out(elsewhere.client)
    assert not is_out(here.client)
    assert here.send(f"profile/sessions/{other}/end").status_code == 404


@pytest.mark.parametrize(
    ("sort", "first", "order"),
    [
        ("", "Globex", "descending"),
        ("?sort=nonsense", "Globex", "descending"),
        ("?sort=name", "Acme", "ascending"),
        ("?sort=-name", "System", "descending"),
        ("?sort=-slug", "System", "descending"),
        ("?sort=created_at", "System", "ascending"),
        ("?sort=name&search=e", "Acme", "ascending"),
    ],
)
def test_console_account_list_sorts_by_column_heads(
    cast: Cast, superadmin: Browser, sort: str, first: str, order: str
) -> None:
    page = superadmin.get(f"accounts{sort}").text
    names = re.findall('<th scope="row"><a [^>]*>([^<]*)<', page)
    assert names[0] == first
    ((shown, target),) = re.findall('aria-sort="([^"]*)"><a href="([^"]*)"', page)
    assert shown == order
    turned = superadmin.get(unescape(target).removeprefix("/console/")).text
    assert re.findall('aria-sort="([^"]*)"', turned) == [
        "descending" if order == "ascending" else "ascending"
    ]
    if "search" in sort:
        assert '<input type="hidden" name="sort" value="name">' in page
        assert "aria-sort" not in superadmin.get("accounts?search=glob").text, "one is sorted"
        assert "search=e" in target


def test_console_account_creation_change_and_deletion(
    app: Flask, cast: Cast, superadmin: Browser
) -> None:
    assert "is created" in superadmin.done("accounts/new", name="Initech")
    taken = superadmin.send("accounts/new", name="Initech")
    assert (taken.status_code, beside(taken, "slug")) == (409, "This slug is taken.")
    found = superadmin.get("accounts?search=inite").text
    assert "1 account<" in found
    assert "3 accounts and the system account" in superadmin.get("accounts").text
    assert "System" in superadmin.get("accounts?status=active").text
    assert "No matches" in superadmin.get("accounts?status=suspended").text
    assert "Acme" not in found
    (id,) = set(re.findall(r"/console/accounts/([\w-]{36})", found))
    assert "Initech · <a" in superadmin.get("users/new?account=initech").text
    assert 'name="account" type="text"' in superadmin.get("users/new?account=").text
    page = superadmin.done("users/new", account="initech", email="p@i.example", role="admin")
    assert "to p@i.example" in page
    assert "p@i.example" in superadmin.get(f"accounts/{id}").text
    admin = Browser(app, cast.alice)
    path = f"accounts/{cast.alice.account_id}"
    superadmin.done(f"{path}/suspend")
    assert is_out(admin.client)
    assert "is active again" in superadmin.done(f"{path}/resume")
    wrong = superadmin.send(f"{path}/close", slug="ACME")
    assert (wrong.status_code, beside(wrong, "slug")) == (400, "Type acme to close this account.")
    assert "is closed" in superadmin.done(f"{path}/close", slug="acme")
    assert superadmin.get(path).status_code == 404
    system = superadmin.send(f"accounts/{cast.root.account_id}/suspend")
    assert (system.status_code, "system account" in alert(system)) == (409, True)


def test_console_new_user_belongs_to_named_account_and_its_groups(
    cast: Cast, superadmin: Browser
) -> None:
    group = cast.alice.post("groups", {"name": "finance"}).json["id"]
    foreign = cast.charlie.post("groups", {"name": "theirs"}).json["id"]
    superadmin.get(f"accounts/{cast.alice.account_id}/team")  # now the latest account
    page = superadmin.get("users/new").text
    assert re.search(r'name="account" type="text"[^>]* value=""[^>]* required', page)
    assert 'name="groups"' not in page
    sent = {"email": "dora@acme.example", "role": "viewer"}
    missing = superadmin.send("users/new", account="", **sent)
    assert (missing.status_code, beside(missing, "account")) == (400, "Required.")
    assert f'name="groups" value="{group}"' in superadmin.get("users/new?account=acme").text
    wrong = superadmin.send("users/new", account="acme", groups=foreign, **sent)
    assert (wrong.status_code, "no group" in beside(wrong, "groups")) == (400, True)
    superadmin.done("users/new", account="acme", groups=group, **sent)
    (dora,) = cast.alice.get("account/users?search=dora").json["items"]
    assert dora["groups"] == ["finance"]


def test_console_team_groups_and_keys_of_any_account_for_superadmin(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    key = cast.alice.post("api-keys", {"name": "nightly"}).json["id"]
    pii = next(one for one in cast.alice.get("groups").json["items"] if one["is_system"])["id"]
    home = f"accounts/{cast.alice.account_id}"
    parts = ("team", "team/invitations", "team/invite", "groups", f"groups/{pii}", "keys")
    for rest in parts:
        page = superadmin.get(f"{home}/{rest}").text
        assert "Account: Acme. Switch" in page, rest
        assert Browser(app, cast.bob).get(f"{home}/{rest}").status_code in (200, 403)
        assert Browser(app, cast.charlie).get(f"{home}/{rest}").status_code == 404
        assert superadmin.get(f"accounts/{cast.root.id}/{rest}").status_code == 404
    # The last member of pii_access may be gone: who else would let one in?
    page = superadmin.done(f"{home}/groups/{pii}/members", email=cast.bob.email)
    assert f"{cast.bob.email} is now in the group" in page
    superadmin.done(f"{home}/groups/{pii}/members/{cast.bob.id}/remove")
    superadmin.done(f"{home}/groups/new", name="finance")
    assert "finance" in admin.get("groups").text
    superadmin.done(f"{home}/team/invite", email="new@acme.example", role="viewer")
    assert "new@acme.example" in admin.get("team/invitations").text
    assert "new@acme.example" not in superadmin.get("team/invitations").text
    assert Browser(app, cast.charlie).send(f"{home}/keys/{key}/revoke").status_code == 404
    superadmin.done(f"{home}/keys/{key}/revoke")
    assert cast.alice.get(f"api-keys/{key}").json["is_revoked"] is True


def test_console_account_switch_shows_changes_of_other_process(
    cast: Cast, superadmin: Browser
) -> None:
    other = Caller(create_app(cast.root.app.extensions["atrium.config"]), **cast.root.headers)
    account, team = f"accounts/{cast.alice.account_id}", f"accounts/{cast.alice.account_id}/team"
    assert "Account: Acme. Switch" in superadmin.get(team).text
    assert other.patch(account, {"name": "Acme Ltd"}).status_code == 200
    assert "Account: Acme Ltd. Switch" in superadmin.get(team).text
    assert other.patch(account, {"is_active": False}).status_code == 200
    for _ in range(2):  # suspended, then closed
        invited = superadmin.send(f"{team}/invite", email="new@acme.example", role="viewer")
        assert superadmin.get(team).status_code == invited.status_code == 404
        assert other.delete(account).status_code in (204, 404)


def test_console_user_management_by_superadmin(app: Flask, cast: Cast, superadmin: Browser) -> None:
    new = builders.make_user(app, cast.alice.account_id, "new@acme.example", verified=False)
    assert cast.bob.email not in superadmin.get("users?search=charlie").text
    assert "is now verified" in superadmin.done(f"users/{new.id}/verify")
    assert "is deactivated" in superadmin.done(f"users/{new.id}/deactivate")
    assert "is removed" in superadmin.done(f"users/{new.id}/remove")
    nowhere = superadmin.send("users/new", account="nowhere", email="x@y.example", role="viewer")
    assert (nowhere.status_code, bool(beside(nowhere, "account"))) == (400, True)


def test_console_user_password_set_by_superadmin(
    app: Flask, cast: Cast, superadmin: Browser
) -> None:
    path, bob = f"users/{cast.bob.id}", Browser(app, cast.bob)
    for password, message in (
        ("", "Required."),
        ("short", "12 characters"),
        ("x" * 20_001, "At most 20000 characters."),
    ):
        answer = superadmin.send(f"{path}/password", new_password=password)
        assert (answer.status_code, message in beside(answer, "new_password")) == (400, True)
        assert not password or f'"{password}"' not in answer.text
        assert '<details class="confirm" open>' in answer.text
    page = superadmin.get(path).text
    assert "At least 12 characters" in page
    assert '<details class="confirm" open>' not in page
    assert not is_out(bob.client)
    page = superadmin.done(f"{path}/password", new_password=NEW_PASSWORD)
    assert "The password of bob@acme.example is changed" in page
    assert NEW_PASSWORD not in page
    assert is_out(bob.client)
    assert sign_in(bob.client, cast.bob).status_code == 401
    assert sign_in(bob.client, cast.bob, password=NEW_PASSWORD).status_code == 303
    assert superadmin.send(f"users/{NONE}/password", new_password=NEW_PASSWORD).status_code == 404


def test_console_user_name_and_email_change_by_superadmin(
    app: Flask, cast: Cast, superadmin: Browser, admin: Browser
) -> None:
    path = f"users/{cast.bob.id}"
    for values, field in (
        ({"name": "Bob", "email": ""}, "email"),
        ({"name": "Bob", "email": "bob"}, "email"),
        ({"name": "Bob", "email": "alice@acme.example"}, "email"),
        ({"name": "x" * 201, "email": "bob@acme.example"}, "name"),
    ):
        answer = superadmin.send(f"{path}/identity", **values)
        assert (answer.status_code in (400, 409), bool(beside(answer, field))) == (True, True)
    page = superadmin.done(f"{path}/identity", name="Bob Smith", email="robert@acme.example")
    assert "robert@acme.example is saved" in page
    assert "not verified" in page
    stored = cast.root.get(path).json
    assert (stored["name"], stored["email"]) == ("Bob Smith", "robert@acme.example")
    superadmin.done(f"{path}/identity", name="", email="robert@acme.example")
    assert cast.root.get(path).json["name"] is None
    for scope in ("users", "team/users"):
        answer = admin.send(f"{scope}/{cast.bob.id}/identity", email="bob@acme.example")
        assert answer.status_code in (403, 404)


def test_console_user_password_form_requires_superadmin(
    app: Flask, cast: Cast, admin: Browser
) -> None:
    for browser in (admin, Browser(app, cast.bob), Browser(app, cast.charlie)):
        answer = browser.send(f"users/{cast.bob.id}/password", new_password=NEW_PASSWORD)
        assert answer.status_code == 403
    assert "new_password" not in admin.get(f"team/users/{cast.bob.id}").text
    assert admin.send(f"team/users/{cast.bob.id}/password").status_code == 404
    assert sign_in(app.test_client(), cast.bob).status_code == 303


def test_console_role_creation_change_and_deletion(cast: Cast, superadmin: Browser) -> None:
    assert "is created" in superadmin.done("roles/new", name="auditor", description="Reads all.")
    id = cast.root.get("roles").json["items"][-1]["id"]
    assert "reviewer" in superadmin.done(f"roles/{id}", name="reviewer", description="")
    assert superadmin.send(f"roles/{id}", name="admin").status_code == 409
    seeded = superadmin.send("roles/1", name="boss")
    assert (seeded.status_code, "cannot be renamed" in alert(seeded)) == (409, True)
    assert "is deleted" in superadmin.done(f"roles/{id}/delete")
    assert superadmin.send("roles/3/delete").status_code == 409
    assert superadmin.get("roles/999").status_code == superadmin.get("roles/x").status_code == 404


def test_console_password_reset_by_mailed_link(app: Flask, cast: Cast) -> None:
    browser = Browser(app)
    assert "/welcome/forgot-password" in browser.get("sign-in").text
    pages = [
        browser.done("/welcome/forgot-password", account="acme", email=email)
        for email in (cast.bob.email, "nobody@acme.example")
    ]
    assert "we have sent a link" in pages[0]
    run_jobs(app)
    (mail,) = outbox(app)
    path = link_in(mail).removeprefix("http://atrium.test")
    shown = browser.get(path)
    assert (shown.status_code, f"For {cast.bob.email} of Acme." in shown.text) == (200, True)
    secret = path.partition("token=")[2]
    weak = browser.send("/welcome/reset-password", token=secret, new_password="short")
    assert (weak.status_code, bool(beside(weak, "new_password"))) == (400, True)
    browser.done("/welcome/reset-password", token=secret, new_password=NEW_PASSWORD)
    assert sign_in(browser.client, cast.bob, password=NEW_PASSWORD).status_code == 303
    used = browser.send("/welcome/reset-password", token=secret, new_password=NEW_PASSWORD)
    for answer in (used, browser.get(path), browser.get("/welcome/reset-password")):
        assert (answer.status_code, "no longer valid" in alert(answer)) == (400, True)


@pytest.mark.parametrize("chosen", [{"revoke_api_keys": "true"}, {}])
def test_console_password_reset_offers_api_key_revocation(
    app: Flask, cast: Cast, chosen: dict[str, str]
) -> None:
    key = cast.bob.post("api-keys", {"name": "nightly import"}).json["key"]
    browser = Browser(app)
    browser.done("/welcome/forgot-password", account="acme", email=cast.bob.email)
    run_jobs(app)
    path = link_in(outbox(app)[0]).removeprefix("http://atrium.test")
    assert "Revoke your access keys as well: nightly import" in browser.get(path).text
    secret = path.partition("token=")[2]
    browser.done("/welcome/reset-password", token=secret, new_password=NEW_PASSWORD, **chosen)
    status = Caller(app, **{"X-API-Key": key}).get("auth/me").status_code
    assert status == (401 if chosen else 200)
    sign_in(browser.client, cast.bob, password=NEW_PASSWORD)
    offered = "Revoke your API keys as well" in browser.get("profile").text
    assert offered == (not chosen)


def test_console_escapes_html_in_user_input(app: Flask, cast: Cast, admin: Browser) -> None:
    admin.done("profile", name=HOSTILE, email=cast.alice.email)
    admin.done("groups/new", name=HOSTILE[:100], description=HOSTILE)
    made = admin.done("keys/new", name=HOSTILE)
    superadmin = Browser(app, cast.root)
    superadmin.done("roles/new", name=HOSTILE[:100])
    superadmin.done("accounts/new", name=HOSTILE, slug="hostile")
    group = cast.alice.get("groups?search=script").json["items"][0]["id"]
    pages = [made, admin.send("team/invite", email=HOSTILE, role=HOSTILE).text]
    for path in ("team", "groups", f"groups/{group}", "keys", "profile", "team/invite"):
        pages.append(admin.get(path).text)
    for path in ("accounts", "users", "roles", f"users/{cast.alice.id}"):
        pages.append(superadmin.get(path).text)
    for page in pages:
        assert "<script>" not in page
        assert "<img" not in page
        assert "1111113" not in page
        assert not re.search(r"<style|\son\w+=\"|\sstyle=|javascript:", page)
        assert "&lt;script&gt;" in page


LINUX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
WEBKIT = "AppleWebKit/537.36 (KHTML, like Gecko)"


@pytest.mark.parametrize(
    ("user_agent", "shown"),
    [
        (LINUX, "Firefox on Linux"),
        (f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {WEBKIT} Chrome/140.0 Safari/537.36 Edg/140.0",
         "Edge on Windows"),
        (f"Mozilla/5.0 (Linux; Android 15; Pixel 9) {WEBKIT} Chrome/140.0 Mobile Safari/537.36",
         "Chrome on Android"),
        (f"Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) {WEBKIT} Version/18.0 Safari/604",
         "Safari on iOS"),
        (f"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) {WEBKIT} Version/18.0 Safari/605",
         "Safari on macOS"),
        ("curl/8.5.0", "curl"),
        ("(" * 200, "(" * 30),
        ("", "unknown program"),
    ],
)  # fmt: skip
def test_user_agent_description(app: Flask, user_agent: str, shown: str) -> None:
    with app.test_request_context():
        assert user_agents.describe(user_agent) == shown


def test_console_session_list_shows_browser_and_full_agent(app: Flask, cast: Cast) -> None:
    here = Browser(app, cast.bob)
    here.client.environ_base["HTTP_USER_AGENT"] = LINUX
    sign_in(here.client, cast.bob)
    page = here.get("profile").text
    assert f'<small title="{LINUX}">Firefox on Linux</small>' in page


def test_console_group_candidates_are_found_while_typing(app: Flask, cast: Cast) -> None:
    group = cast.alice.post("groups", {"name": "finance"}).json["id"]
    admin, path = Browser(app, cast.alice), f"groups/{group}/candidates"
    every = admin.get(path).json
    assert {one["id"] for one in every["options"]} == {cast.alice.email, cast.bob.email}
    (bob,) = admin.get(f"{path}?text=BOB%40").json["options"]
    assert bob["id"] == cast.bob.email
    assert admin.get(f"{path}?text={cast.charlie.email}").json["options"] == []
    assert Browser(app, cast.bob).get(path).status_code == 403
    assert Browser(app, cast.charlie).get(path).status_code == 404


def shown_addresses(page: str) -> set[str]:
    return set(re.findall(r'<th scope="row">(?:<a [^>]*>)?([^<]+@[^<]+)<', page))


def test_console_user_list_search_and_filters(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    acme = cast.alice.account_id
    builders.make_user(app, acme, "xx@acme.example", "editor", verified=False)
    assert cast.bob.patch("auth/me", {"name": "Robert Smith"}).status_code == 200
    assert admin.done(f"team/users/{cast.bob.id}/deactivate")
    with app.app_context():
        ids = {role.name: role.id for role in roles.page(0, 10)[0]}
    alice, bob, new = cast.alice.email, cast.bob.email, "xx@acme.example"
    for query, expected in (
        ("search=rt+SMITH", {bob}),
        ("search=BOB%40", {bob}),
        ("search=%25", set()),
        ("state=deactivated", {bob}),
        ("state=not+verified", {new}),
        ("state=active", {alice}),
        (f"role={ids['editor']}", {new}),
        (f"role={ids['editor']}&state=active", set()),
    ):
        assert shown_addresses(admin.get(f"team?{query}").text) == expected, query
        everywhere = superadmin.get(f"users?account=acme&{query}").text
        assert shown_addresses(everywhere) == expected, query
    assert shown_addresses(superadmin.get("users?account=acme").text) == {alice, bob, new}
    assert cast.charlie.email in shown_addresses(superadmin.get("users?state=active").text)
    assert "no account with this slug" in superadmin.get("users?account=nowhere").text
    assert 'name="account"' not in admin.get("team?account=globex").text
    (found,) = cast.alice.get("account/users?search=smith").json["items"]
    assert found["email"] == bob


def test_console_invitation_list_search_and_details(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    present = cast.alice.get("invitations").json["items"]
    for name in ("dora", "emil"):
        assert cast.alice.post("invitations", {"email": f"{name}@acme.example"}).status_code == 201
    home = f"accounts/{cast.alice.account_id}"
    superadmin.done(f"{home}/team/invite", email="fay@acme.example", role="viewer")
    found = admin.get("team/invitations?search=DORA").text
    assert shown_addresses(found) == {"dora@acme.example"}
    assert cast.alice.email in found
    assert "a superadmin" in admin.get("team/invitations?search=fay").text
    pending = sum(one["status"] == "pending" for one in present) + 3
    for page in ("team", "team/invitations", "team/second-factors"):
        assert f'Invitations <span class="state">{pending}</span>' in admin.get(page).text, page
    sent, until = re.findall(r'<time datetime="([^"]*)"', found)
    assert datetime.fromisoformat(until) - datetime.fromisoformat(sent) == timedelta(hours=48)


def test_console_role_page_shows_rules_and_users(app: Flask, cast: Cast) -> None:
    browser = Browser(app, cast.root)
    with app.app_context():
        ids = {role.name: role.id for role in roles.page(0, 10)[0]}
    rules: dict[str, str] = {"list_rule": "@has_role(editor)", "view_rule": "title = 'viewer'"}
    builders.make_collection(cast.root, "posts", **rules)
    pages = {name: browser.get(f"roles/{ids[name]}").text for name in ("editor", "viewer")}
    assert ["/rules" in page for page in pages.values()] == [True, False]
    assert "@has_role" in pages["editor"]
    assert re.findall(r'"number">([0-9]+)</td>', browser.get("roles").text) == ["0", "1", "0"]
    found = browser.get(f"users?role={ids['viewer']}").text
    assert ["bob@acme" in found, "alice@acme" in found] == [True, False]


def test_console_seeded_role_description_is_replaced_only_when_changed(
    app: Flask, cast: Cast
) -> None:
    browser = Browser(app, cast.root)
    stored = cast.root.get("roles/3").json["description"]
    page = browser.get("roles/3").text
    (shown,) = map(unescape, re.findall(r'name="description"[^>]*>\n([^<]+)</textarea>', page))
    assert shown == "For those who only read records, where rules say so."
    for place in ("team/invite", f"team/users/{cast.bob.id}"):
        page = Browser(app, cast.alice).get(place).text
        assert "may do with records is in the rules of each collection" in page
        assert shown in page
    browser.done("roles/3", name="viewer", description=shown)
    assert cast.root.get("roles/3").json["description"] == stored
    browser.done("roles/3", name="viewer", description="Auditors")
    assert cast.root.get("roles/3").json["description"] == "Auditors"


def test_console_user_page_changes_groups(cast: Cast, admin: Browser, superadmin: Browser) -> None:
    group = cast.alice.post("groups", {"name": "finance"}).json["id"]
    for browser, page in ((admin, "team/users"), (superadmin, "users")):
        one = f"{page}/{cast.bob.id}"
        assert "In no group." in browser.get(one).text
        assert "is in finance now." in browser.done(f"{one}/groups", group=group)
        assert cast.alice.get(f"account/users/{cast.bob.id}").json["groups"] == ["finance"]
        assert "Remove from finance" in browser.get(one).text
        for _ in range(2):  # pressed twice
            assert "is removed from the group" in browser.done(f"{one}/groups/{group}/remove")
    foreign = cast.charlie.post("groups", {"name": "theirs"}).json["id"]
    assert admin.send(f"team/users/{cast.bob.id}/groups", group=foreign).status_code == 404
    empty = admin.send(f"team/users/{cast.bob.id}/groups", group="")
    assert (empty.status_code, beside(empty, "group")) == (400, "Required.")


def test_console_user_page_adds_to_pii_access_only_as_member(cast: Cast, admin: Browser) -> None:
    groups = cast.alice.get("groups").json["items"]
    pii = next(group["id"] for group in groups if group["name"] == "pii_access")
    other = Browser(cast.alice.app, _second_admin(cast))
    refused = other.send(f"team/users/{cast.bob.id}/groups", group=pii)
    assert refused.status_code == 403
    assert "is in pii_access now." in admin.done(f"team/users/{cast.bob.id}/groups", group=pii)


def _second_admin(cast: Cast) -> Caller:
    app = cast.alice.app
    return Caller(app, builders.make_user(app, cast.alice.account_id, "erin@acme.example", "admin"))


def test_user_page_counts_keys_that_are_neither_revoked_nor_expired(
    app: Flask, cast: Cast, admin: Browser
) -> None:
    soon = clock.iso(clock.now() + timedelta(hours=1))
    for name, more in (("valid", {"expires_at": soon}), ("revoked", {}), ("expired", {})):
        made = cast.bob.post("api-keys", {"name": name, **more}).json
        if name == "revoked":
            assert cast.bob.delete(f"api-keys/{made['id']}").status_code == 204
    with app.app_context(), transaction() as session:
        past = {"expires_at": clock.now() - timedelta(seconds=1)}
        session.execute(sa.update(ApiKey).where(ApiKey.name == "expired").values(past))
    assert "1 active" in admin.get(f"team/users/{cast.bob.id}").text
