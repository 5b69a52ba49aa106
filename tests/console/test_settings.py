"""The settings of an account, and what superadmins see of how the service runs."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from flask import Flask

from app import clock, db, jobs
from app.collections import revisions
from app.console.admin import attributes
from app.db import disk
from app.outbound import mail
from tests import builders
from tests.builders import Cast
from tests.console.browser import Browser, alert, beside

GIVEN = {
    "name": "Acme & Sons",
    "cors_origins": "https://app.acme.example\n\n https://two.acme.example ",
}
SIGN_IN = {"mfa": "optional", "password_sign_in": "true"}


def test_console_account_settings_are_saved(cast: Cast, admin: Browser) -> None:
    path, client = f"settings/{cast.alice.account_id}", "https://app.acme.example/in"
    redirects = {"allowed_redirect_uris": [client], "default_redirect_uri": client}
    others = {**redirects, "session_idle_hours": 9}
    cast.alice.patch("account", others)
    assert admin.get("settings").location == f"/console/{path}"
    page = admin.done(f"{path}/general", **GIVEN)
    assert "The settings are saved." in page
    assert "https://two.acme.example" in page
    kept = cast.alice.get("account").json
    assert kept["name"] == GIVEN["name"]
    assert kept["cors_origins"] == ["https://app.acme.example", "https://two.acme.example"]
    assert kept.items() >= others.items()  # which other pages change


def test_console_session_limits_are_saved(cast: Cast, admin: Browser) -> None:
    path = f"settings/{cast.alice.account_id}/sign-in"
    page = admin.get(path).text
    assert re.findall(r'placeholder="(\d+)"', page) == ["168", "720"]
    for hours in ("0", "721", "1e2", "²", "9" * 400):
        answer = admin.send(path, **SIGN_IN, session_idle_hours=hours)
        assert beside(answer, "session_idle_hours") == "A number from 1 to 720."
    admin.done(path, **SIGN_IN, session_idle_hours="8", session_max_hours=" 48 ")
    limits = {"session_idle_hours": 8, "session_max_hours": 48}
    assert cast.alice.get("account").json.items() >= limits.items()
    assert 'value="48"' in admin.get(path).text
    admin.done(path, **SIGN_IN)
    assert cast.alice.get("account").json.items() >= dict.fromkeys(limits).items()
    wrong = admin.send(path, password_sign_in="true", mfa="sometimes")
    assert (wrong.status_code, beside(wrong, "mfa")) == (400, "Choose one of these.")
    assert cast.alice.get("account").json["mfa"] == "optional"


def test_console_second_factor_roles_are_saved(cast: Cast, admin: Browser) -> None:
    path, form = f"settings/{cast.alice.account_id}/sign-in", {**SIGN_IN, "mfa": "required"}
    admin.done(path, **form, mfa_roles=["admin", "viewer"])
    assert cast.alice.get("account").json["mfa_roles"] == ["admin", "viewer"]
    page = admin.get(path).text
    boxes = dict(re.findall(r'name="mfa_roles" value="(\w+)"( checked)?', page))
    assert {name for name, checked in boxes.items() if checked} == {"admin", "viewer"}
    wrong = admin.send(path, **form, mfa_roles=["owner"])
    assert (wrong.status_code, beside(wrong, "mfa_roles")) == (400, "There is no role owner.")
    for number in range(30):  # too many for boxes
        assert cast.root.post("roles", {"name": f"role{number}"}).status_code == 201
    assert 'name="role_names"' in admin.get(path).text
    admin.done(path, **form, role_names=" viewer,role29")
    assert cast.alice.get("account").json["mfa_roles"] == ["viewer", "role29"]
    assert beside(admin.send(path, **form, role_names="owner"), "mfa_roles")
    assert 'value="viewer, role29"' in admin.get(path).text


def test_console_settings_form_after_concurrent_change_is_409(cast: Cast, admin: Browser) -> None:
    account = cast.alice.account_id
    setting = {"category": "auth_providers", "provider_name": "github", "display_name": "Hub"}
    config = {"client_id": "a", "client_secret": "b"}
    made = cast.alice.post("admin/configuration", {**setting, "config": config}).json["id"]

    def seen(path: str) -> str:
        (moment,) = re.findall(r'name="seen" value="([^"]+)"', admin.get(path).text)
        return str(moment)

    provider = {"display_name": "Mine", "priority": "0", "client_id": "a"}
    sign_in = {"sso_provisioning": "usual"}
    for path, body, theirs in (
        (f"settings/{account}/general", GIVEN, ("account", {"name": "Theirs"})),
        (f"settings/{account}/sign-in", SIGN_IN, ("account", {"name": "Their own"})),
        (f"sso/{account}", sign_in, ("account", {"name": "Again"})),
        (f"sso/{account}/{made}", provider, (f"admin/configuration/{made}", {"priority": 3})),
    ):
        sent = {**body, "seen": seen(path)}
        assert cast.alice.patch(theirs[0], theirs[1]).status_code == 200
        late = admin.send(path, **sent)
        assert (late.status_code, "Somebody else has changed this" in alert(late)) == (409, True)
        assert cast.alice.get(theirs[0]).json.items() >= theirs[1].items()
        admin.done(path, **body, seen=seen(path))


def test_console_settings_errors_are_shown_beside_fields(cast: Cast, admin: Browser) -> None:
    path = f"settings/{cast.alice.account_id}/general"
    wrong = {"name": "", "cors_origins": "x\n" * 51}
    answer = admin.send(path, **wrong)
    assert (answer.status_code, beside(answer, "name")) == (400, "Required.")
    answer = admin.send(path, **{**GIVEN, **wrong, "name": "x"})
    assert "At most 50 lines" in beside(answer, "cors_origins")
    answer = admin.send(path, **{**GIVEN, "cors_origins": f"https://{'a' * 300}"})
    assert "300 characters" in beside(answer, "cors_origins")
    answer = admin.send(path, **{**GIVEN, "cors_origins": "ftp://x"})
    assert "Not a valid URL" in beside(answer, "cors_origins")


def test_console_settings_access_per_role(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    theirs = f"settings/{cast.charlie.account_id}"
    for path, body in ((theirs, {}), (f"{theirs}/general", GIVEN), (f"{theirs}/sign-in", SIGN_IN)):
        assert admin.get(path).status_code == 404
        assert not body or admin.send(path, **body).status_code == 404
        assert "Account: Globex. Switch" in superadmin.get(path).text
    assert Browser(app, cast.bob).get("settings").status_code == 403


CARD = re.compile(
    r'<h2><a href="/console/([^"]+)">([^<]+)</a></h2>.*?class="state[^"]*">([^<]+)<', re.S
)


def cards(browser: Browser, account: str) -> dict[str, str]:
    """The state of each card of the settings; each leads to a page that is there."""
    found = CARD.findall(browser.get(f"settings/{account}").text)
    for path, name, _ in found:
        assert browser.get(path.partition("#")[0]).status_code == 200, name
    return {name: state for _, name, state in found}


def test_console_settings_cards_show_state(cast: Cast, admin: Browser) -> None:
    account = cast.alice.account_id
    assert cards(admin, account) == {
        "General": "no browser applications",
        "Sign-in and sessions": "second factors optional",
        "Single sign-on": "none",
        "Domains": "none",
        "Provisioning (SCIM)": "off",
        "Retention": "no limits",
        "Receiver of the security log": "none",
        "Export": "none",
        "Portal": "none",
    }
    config = {"client_id": "a", "client_secret": "b"}
    setting = {"category": "auth_providers", "provider_name": "github", "config": config}
    provider = cast.alice.post("admin/configuration", setting).json["id"]
    cast.alice.post("account/domains", {"domain": "acme.example"})
    cast.alice.post("account/scim/tokens")
    cast.alice.put("account/security-log/stream", {"url": "http://127.0.0.1:9/"})
    cast.alice.put("account/retention", {"deliveries_days": 3, "instances_days": 4})
    origins = ["https://a.example", "https://b.example"]
    cast.alice.patch("account", {"cors_origins": origins, "mfa": "off"})
    assert cards(admin, account) == {
        "General": "2 browser applications",
        "Sign-in and sessions": "second factors off",
        "Single sign-on": "1 provider",
        "Domains": "0 of 1 verified",
        "Provisioning (SCIM)": "on",
        "Retention": "2 limits",
        "Receiver of the security log": "on",
        "Export": "none",
        "Portal": "none",
    }
    cast.alice.patch(f"admin/configuration/{provider}", {"enabled": False})
    cast.alice.put(
        "account/security-log/stream", {"url": "http://127.0.0.1:9/", "is_enabled": False}
    )
    found = cards(admin, account)
    assert (found["Single sign-on"], found["Receiver of the security log"]) == (
        "switched off",
        "switched off",
    )


def test_console_settings_cards_count_own_account_only(cast: Cast, superadmin: Browser) -> None:
    cast.charlie.post("account/domains", {"domain": "globex.example"})
    assert cards(superadmin, cast.alice.account_id)["Domains"] == "none"
    assert cards(superadmin, cast.charlie.account_id)["Domains"] == "0 of 1 verified"
    assert "Suspend or close" in cards(superadmin, cast.charlie.account_id)
    own = cards(superadmin, cast.root.account_id)  # of the system account, which has fewer
    assert not own.keys() & {"Domains", "Provisioning (SCIM)", "Suspend or close"}


AREAS = ("dashboard", "usage", "sso", "settings", "security-log")


def test_console_account_areas_link_to_each_other(
    cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    account = cast.alice.account_id
    pages = [f"accounts/{account}", f"accounts/{account}/dashboard"]
    pages += [f"{area}/{account}" for area in AREAS[1:]]
    for path in pages:
        page = superadmin.get(path).text
        (areas,) = re.findall(r'<nav class="areas" aria-label="Account">(.*?)</nav>', page, re.S)
        assert sorted(re.findall(r'href="/console/([^"]+)"', areas)) == sorted(pages)
        assert re.findall(r'href="/console/([^"]+)" aria-current="page"', areas) == [path]
        assert "<h1>Acme</h1>" in page
    for area in AREAS[1:]:
        assert 'aria-label="Account"' not in admin.get(f"{area}/{account}").text


def test_console_service_state_requires_superadmin(
    app: Flask, cast: Cast, admin: Browser, superadmin: Browser, database: str
) -> None:
    for path in ("migrations", "health", "outbox", "outbox/x.eml"):
        assert admin.get(path).status_code == 403
    builders.make_collection(cast.root)
    migrations = superadmin.get("migrations").text
    with app.app_context():
        newest = revisions.listing()["revisions"][0]["revision"]
    assert newest in migrations
    assert "Page 1 of" not in migrations or 'rel="next"' in migrations
    health = superadmin.get("health").text
    # Database, migrations and mail, and of SQLite the disk.
    assert health.count('class="state good">ok<') == (4 if database == "sqlite" else 3)
    faults = re.findall(r"2 checks need attention\. (.*)</p>", health)
    assert re.findall(r'href="#([^"]*)">([^<]*)<', faults[0]) == [
        ("worker", "Worker"),
        ("backups", "Backups"),
    ]
    assert 'id="worker"' in health
    assert 'id="backups"' in health
    assert "written to files" in health


@pytest.mark.parametrize(
    ("due", "said"),
    [
        (None, "No worker has run yet"),
        (timedelta(minutes=4), "Worker last seen <time"),
        (timedelta(minutes=-4), "Jobs are overdue. Worker last seen <time"),
    ],
)
def test_console_health_page_shows_worker_state(
    app: Flask, superadmin: Browser, due: timedelta | None, said: str
) -> None:
    with app.app_context(), db.transaction() as session:
        if due is not None:
            seen = {"due_at": clock.now() + due, "finished_at": clock.now() + due}
            purge = {"account_id": jobs.INSTANCE, "kind": "jobs.purge", "payload": {}}
            session.add(jobs.Job(**purge, **seen))
    for path in ("", "jobs", "health"):
        assert said in superadmin.get(path).text, path
    is_late = said.startswith("Jobs are overdue")
    health = superadmin.get("health").text
    is_running = said.startswith("Worker last seen")
    assert (health.index('id="worker"') < health.index('id="database"')) is not is_running
    assert ('data-copy="bin/atrium worker"' in health) is not is_running
    assert ("alert-danger" in health) is is_late
    assert ("Needs attention" in superadmin.get("").text) is is_late


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (812 * 2**20, "812 MiB"),
        (45_000 * 2**20, "43.9 GiB"),
        (5 * 2**50, "5,120 TiB"),
    ],
)
def test_console_sizes_have_fitting_units(
    superadmin: Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int, text: str
) -> None:
    monkeypatch.setattr(db, "sqlite_file", lambda: str(tmp_path / "atrium.db"))
    monkeypatch.setattr(disk, "space", lambda file: disk.Space(size, 2**60))
    assert f"{text} of 1,048,576 TiB free</td>" in superadmin.get("health").text


def test_console_outbox_shows_development_mails(
    app: Flask, cast: Cast, superadmin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No mails yet." in superadmin.get("outbox").text
    with app.app_context():
        link = "http://atrium.test/welcome/reset-password?token=x"
        context = {"link": link, "account": "<b>Acme</b>", "hours": 1}
        mail.send("bob@acme.example", "reset_password", name=None, user=None, url=link, **context)
        (name,) = mail.saved_names()
    assert "bob@acme.example" in superadmin.get("outbox").text
    shown = superadmin.get(f"outbox/{name}").text
    assert f'<a href="{link}">' in shown
    assert "<b>Acme" not in shown
    for odd in ("nope.eml", quote("../atrium.db", safe=""), "..%2f..%2fetc%2fpasswd"):
        assert superadmin.get(f"outbox/{odd}").status_code == 404
    settings = app.extensions["atrium.config"]
    monkeypatch.setitem(app.extensions, "atrium.config", replace(settings, mail_url="smtp://x"))
    assert superadmin.get(f"outbox/{name}").status_code == 404
    assert "console/outbox" not in superadmin.get("health").text


def test_console_directory_is_set_by_superadmins(superadmin: Browser, admin: Browser) -> None:
    assert admin.get("directory").status_code == 403
    answer = superadmin.send("directory", rule="@has_role(x)", fields=["name"])
    assert (answer.status_code, beside(answer, "rule")) == (400, "There is no role x.")
    answer = superadmin.send("directory", rule="@has_group(x)", fields=["name", "role"])
    assert answer.status_code == 303
    shown = superadmin.get("directory").text
    assert "@has_group(x)" in shown
    assert "No account has a group x." in shown
    checked = [name for name in attributes.FIELDS if f'value="{name}" checked' in shown]
    assert checked == ["name", "role"]
