"""Setup links: the customer's IT sets up single sign-on without a user, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask

from app import clock
from tests import mailbox
from tests.builders import PASSWORD, Caller, Cast, make_user
from tests.console.browser import COOKIE, Browser, asks_to_sign_in, beside
from tests.console.test_sso import through
from tests.sso import openid
from tests.sso.flows import Stage

LINKS = "account/setup-links"
SHOWN = re.compile(r'value="(http\S+/console/setup/\S+)" readonly')
SETUP_COOKIE = "atrium_setup"
CLOSED = "This link is not open"


@pytest.fixture
def stage(app: Flask, cast: Cast) -> Iterator[Stage]:
    with openid.providing() as provider:
        yield Stage(app, cast, provider)


def made(by: Caller, **body: Any) -> dict[str, Any]:
    """A link that this admin creates."""
    answer = by.post(LINKS, {"name": "IT of Acme", **body})
    assert answer.status_code == 201, answer.json
    created: dict[str, Any] = answer.json
    return created


def page_of(url: str) -> str:
    """The path of a link below the console."""
    return urlsplit(url).path.removeprefix("/console/")


def opened(app: Flask, link: dict[str, Any]) -> Browser:
    """The browser of somebody without a user who has opened a link."""
    browser = Browser(app)
    assert "Set up single sign-on" in browser.done(page_of(link["url"]))
    return browser


def state(by: Caller, link: dict[str, Any]) -> str:
    """The state of a link as its admins see it."""
    found = next(one for one in by.get(LINKS).json["items"] if one["id"] == link["id"])
    return str(found["state"])


def test_setup_link_holder_sets_up_single_sign_on(stage: Stage) -> None:
    alice, home = stage.cast.alice, f"sso/{stage.cast.alice.account_id}"
    admin = Browser(stage.app, alice)
    page = f"{home}/setup-links"
    assert f'href="/console/{page}"' in admin.get(home).text
    assert "No setup links yet" in admin.get(page).text
    refused = admin.send(page, days="3")
    assert (refused.status_code, beside(refused, "name")) == (400, "Required.")
    form = {"name": "IT of Acme", "features": ["sso", "domains", "scim"], "days": "3"}
    shown = admin.done(page, email="it@acme.example", **form)
    (url,) = SHOWN.findall(shown)
    mailbox.run_jobs(stage.app)
    mail = mailbox.outbox(stage.app)[-1]
    assert (mail["To"], mailbox.link_in(mail)) == ("it@acme.example", url)
    holder = Browser(stage.app)
    for _ in range(2):  # looking uses nothing up
        assert "Acme asks you to connect" in holder.get(page_of(url)).text
    steps = holder.done(page_of(url))
    for title in ("Connect your identity provider", "Verify your domains", "Provision users"):
        assert title in steps
    early = holder.send("setup/complete")
    assert (early.status_code, "Test a sign-in first" in early.text) == (409, True)
    config = {"display_name": "Google", "enabled": "true", **stage.provider.config()}
    assert "is set up. Test it now." in holder.done(f"{home}/new/auth_providers/google", **config)
    (row,) = alice.get("admin/configuration").json["items"]
    tested = through(stage, holder, holder.get(f"{home}/{row['id']}/test"))
    assert tested.status_code == 200
    assert ">tested<" in holder.get("setup").text
    assert "is added. Prove it now." in holder.done(f"{home}/domains", domain="acme.example")
    assert "svc_scim_" in holder.done(f"{home}/scim")
    (token,) = alice.get("account/scim/tokens").json["items"]
    assert "IT of Acme" in admin.get(f"{home}/scim").text
    assert "The set-up is completed" in holder.done("setup/complete")
    (link,) = alice.get(LINKS).json["items"]
    assert (link["state"], token["created_by"]) == ("completed", link["id"])
    mailbox.run_jobs(stage.app)
    assert mailbox.outbox(stage.app)[-1]["To"] == alice.email
    assert CLOSED in holder.get("setup").text
    entries = stage.cast.root.get(f"audit-logs?user_id={link['id']}&limit=100").json["items"]
    assert {one["table_name"] for one in entries} >= {
        *("setup_links", "provider_settings", "account_domains", "scim_tokens")
    }
    assert {one["user_name"] for one in entries} == {"Setup link: IT of Acme"}


def test_setup_link_completion_after_failed_test_is_409(stage: Stage) -> None:
    home = f"sso/{stage.cast.alice.account_id}"
    row = stage.oauth(stage.cast.alice)
    holder = opened(stage.app, made(stage.cast.alice))
    stage.provider.lies = lambda claims, header: claims.update(aud="another")  # type: ignore[func-returns-value]
    tested = through(stage, holder, holder.get(f"{home}/{row['id']}/test"))
    assert "would be refused" in tested.text
    assert holder.send("setup/complete").status_code == 409


def test_setup_link_opens_once(app: Flask, cast: Cast) -> None:
    link = made(cast.alice)
    holder, other = opened(app, link), Browser(app)
    assert state(cast.alice, link) == "opened"
    for answer in (other.get(page_of(link["url"])), other.send(page_of(link["url"]))):
        assert (answer.status_code, CLOSED in answer.text) == (403, True)
    assert SETUP_COOKIE not in {cookie.key for cookie in _cookies(other)}
    assert holder.get("setup").status_code == 200
    # The text of the link is not the secret of the cookie.
    other.client.set_cookie(SETUP_COOKIE, link["url"].rpartition("/")[2])
    assert CLOSED in other.get("setup").text


def test_pages_of_setup_link_show_the_product_alone(app: Flask, cast: Cast) -> None:
    url = "https://www.helpdesk.example/"
    logo = "https://cdn.helpdesk.example/logo.svg"
    product = {"name": "Helpdesk", "url": url, "logo": logo, "accounts_may_brand": True}
    assert cast.root.put("product", product).status_code == 200
    assert cast.alice.put("account/brand", {"name": "Acme Desk"}).status_code == 200
    link, home = made(cast.alice), f"sso/{cast.alice.account_id}"
    unopened = Browser(app).get(page_of(link["url"]))
    holder = opened(app, link)
    domain = holder.done(f"{home}/domains", domain="acme.example")
    pages = [f"{home}/new/auth_providers/google", f"{home}/new/saml_providers/okta"]
    pages += [f"{home}/domains", f"{home}/scim", "setup", "setup/done", "setup/none"]
    for page in (unopened, *map(holder.get, pages)):
        assert "Atrium" not in page.text, page.request.path
        assert page.headers["Referrer-Policy"] == "no-referrer", page.request.path
        assert "https://cdn.helpdesk.example" in page.headers["Content-Security-Policy"]
    assert "Atrium" not in domain
    for page in (unopened, holder.get("setup")):
        assert "Acme Desk" in page.text
        assert f'href="{url}"' in page.text
        assert 'href="/console"' not in page.text


def test_setup_link_is_not_opened_by_head_or_wrong_token(app: Flask, cast: Cast) -> None:
    link, browser = made(cast.alice), Browser(app)
    browser.client.head(urlsplit(link["url"]).path)
    for token in ("x", "AA0001-x", f"{link['url'].rpartition('/')[2]}x", "%00", "a" * 5000):
        assert browser.get(f"setup/{token}").status_code in (403, 404)
        assert browser.send(f"setup/{token}").status_code in (403, 404)
    assert state(cast.alice, link) == "pending"


def test_setup_link_holder_reaches_only_its_pages(app: Flask, cast: Cast) -> None:
    link = made(cast.alice, features=["sso"])
    holder, home = opened(app, link), f"sso/{cast.alice.account_id}"
    allowed = {rule for rule in _console_rules(app) if rule.startswith("/console/setup")}
    for rule in sorted(_console_rules(app) - allowed):
        path = _filled(rule, cast.alice.account_id)
        answer = holder.client.get(path)
        reached = answer.status_code == 200 and "<title>Sign in" not in answer.text
        assert not reached or _is_for_everybody(app, path), path
    assert holder.get(home).headers["Location"] == "/console/setup"
    assert holder.get(f"{home}/new/auth_providers/google").status_code == 200
    for path in (f"{home}/domains", f"{home}/scim"):  # features that the link lacks
        assert holder.get(path).headers["Location"] == "/console/setup"
        assert holder.send(path, domain="acme.example").headers["Location"] == "/console/setup"
    assert cast.alice.get("account/domains").json["total"] == 0
    assert holder.get(f"sso/{cast.charlie.account_id}/new/auth_providers/google").status_code == 404


def test_setup_link_holder_cannot_change_roles_or_policies(app: Flask, cast: Cast) -> None:
    holder, home = opened(app, made(cast.alice)), f"sso/{cast.alice.account_id}"
    mapping = {"rows": "1", "group_0": "Everyone", "role_0": "admin", "sso_allow_admin": "true"}
    assert asks_to_sign_in(holder.send(home, **mapping))
    domain = cast.alice.post("account/domains", {"domain": "acme.example"}).json["id"]
    page = f"{home}/domains/{domain}"
    assert "auto_join" not in holder.get(page).text
    assert asks_to_sign_in(holder.send(page, auto_join="true", auto_join_role="editor"))
    assert cast.alice.get("account/domains").json["items"][0]["auto_join"] is False
    assert holder.get(f"{home}/setup-links").headers["Location"].startswith("/console/sign-in")
    config = {"client_id": "x", "client_secret": "y", "default_role": "admin"}
    made_admin = holder.send(f"{home}/new/auth_providers/google", display_name="G", **config)
    assert made_admin.status_code == 400
    config["default_role"] = "editor"
    assert (
        holder.send(f"{home}/new/auth_providers/google", display_name="G", **config).status_code
        == 400
    )


def test_setup_link_holder_keeps_default_role_of_provider(app: Flask, cast: Cast) -> None:
    config = {"client_id": "x", "client_secret": "y", "default_role": "editor"}
    body = {"category": "auth_providers", "provider_name": "google", "config": config}
    row = cast.alice.post("admin/configuration", body).json
    holder = opened(app, made(cast.alice))
    page = f"sso/{cast.alice.account_id}/{row['id']}"
    assert "default_role" in Browser(app, cast.alice).get(page).text
    assert "default_role" not in holder.get(page).text
    holder.done(page, display_name="Google", enabled="true", client_id="another")
    (changed,) = cast.alice.get("admin/configuration").json["items"]
    assert (changed["config"]["client_id"], changed["config"]["default_role"]) == (
        "another",
        "editor",
    )


def test_setup_link_page_shows_open_steps_and_contact(app: Flask, cast: Cast) -> None:
    holder = opened(app, made(cast.alice))
    home = f"sso/{cast.alice.account_id}"
    steps = holder.get("setup").text
    assert "no provider yet" in steps
    finish = steps.partition("<h2>Finish</h2>")[2]
    assert ("disabled" in finish, 'action="/console/setup/complete"' in finish) == (True, False)
    ask = f"Ask {cast.alice.email} to allow your domains"
    assert ask not in steps
    config = {"client_id": "x", "client_secret": "y"}
    body = {"category": "auth_providers", "provider_name": "google", "config": config}
    row = cast.alice.post("admin/configuration", body).json
    for page in ("setup", f"{home}/{row['id']}"):
        assert ask in holder.get(page).text
    cast.alice.patch("account", {"sso_email_domains": ["acme.example"]})
    for page in ("setup", f"{home}/{row['id']}"):
        assert ask not in holder.get(page).text
    holder.done(f"{home}/domains", domain="acme.example")
    secret = cast.alice.post("account/scim/tokens").json["token"]
    steps = holder.get("setup").text
    assert "0 of 1 verified" in steps
    assert "token created, not used yet" in steps
    directory = Caller(app, Authorization=f"Bearer {secret}")
    assert directory.get("/scim/v2/Users").status_code == 200
    assert ">connected<" in holder.get("setup").text


def test_setup_cookie_as_api_credential_is_401(app: Flask, cast: Cast) -> None:
    holder = opened(app, made(cast.alice))
    (secret,) = (c.value for c in _cookies(holder) if c.key == SETUP_COOKIE)
    for headers in ({}, {"Authorization": f"Bearer {secret}"}, {"X-API-Key": secret}):
        answer = holder.client.get("/api/v1/account", headers=headers)
        assert answer.status_code == 401


@pytest.mark.parametrize("end", ["revoked", "creator demoted", "creator deactivated", "expired"])
def test_setup_session_ends_with_its_link_or_creator(
    app: Flask, cast: Cast, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_user(app, cast.alice.account_id, "erin@acme.example", "admin").id
    login = {"account": "acme", "email": "erin@acme.example", "password": PASSWORD}
    token = Caller(app).post("auth/login", login).json["token"]
    erin = Caller(app, Authorization=f"Bearer {token}")
    holder, unopened = opened(app, link := made(erin)), made(erin)
    home = f"sso/{cast.alice.account_id}"
    assert holder.get(f"{home}/domains").status_code == 200
    if end == "revoked":
        for one in (link, unopened):
            for _ in range(2):
                assert cast.alice.delete(f"{LINKS}/{one['id']}").status_code == 204
    elif end == "creator demoted":
        cast.alice.patch(f"account/users/{other}", {"role": "viewer"})
    elif end == "creator deactivated":
        cast.alice.patch(f"account/users/{other}", {"is_active": False})
    else:
        later = clock.now() + timedelta(hours=73)
        monkeypatch.setattr(clock, "now", lambda: later)
    assert holder.get(f"{home}/domains").headers["Location"] == "/console/setup"
    assert CLOSED in holder.get("setup").text
    refused = holder.send(f"{home}/domains", domain="acme.example")
    assert refused.headers["Location"] == "/console/setup"
    assert CLOSED in Browser(app).get(page_of(unopened["url"])).text


def test_setup_session_and_sign_in_end_each_other(app: Flask, cast: Cast) -> None:
    browser = Browser(app, cast.bob)
    browser.done(page_of(made(cast.alice)["url"]))
    assert COOKIE not in {cookie.key for cookie in _cookies(browser)}
    assert browser.get("setup").status_code == 200
    form = {"account": "acme", "email": cast.bob.email, "password": PASSWORD}
    browser.done("sign-in", **form)
    assert SETUP_COOKIE not in {cookie.key for cookie in _cookies(browser)}
    assert browser.get("setup").headers["Location"] == "/console"


def test_setup_link_renewal_mails_new_link(app: Flask, cast: Cast) -> None:
    admin, page = Browser(app, cast.alice), f"sso/{cast.alice.account_id}/setup-links"
    link = made(cast.alice, email="it@acme.example", features=["sso", "scim"])
    listed = admin.get(page).text
    assert "Single sign-on, Provisioning (SCIM) · it@acme.example" in listed
    assert "We have sent a new link to it@acme.example" in admin.done(f"{page}/{link['id']}/renew")
    mailbox.run_jobs(app)  # the first mail was not sent yet, and its link is worth nothing now
    (mail,) = mailbox.outbox(app)
    assert (mail["To"], mailbox.link_in(mail) != link["url"]) == ("it@acme.example", True)
    assert CLOSED in Browser(app).get(page_of(link["url"])).text
    (renewed,) = cast.alice.get(LINKS).json["items"]
    assert renewed["expires_at"] == link["expires_at"]
    opened(app, {"url": mailbox.link_in(mail)})
    refused = admin.send(f"{page}/{link['id']}/renew")
    assert (refused.status_code, "was opened" in refused.text) == (409, True)
    assert "Send again" not in admin.get(page).text


def test_setup_link_renewal_without_mail_shows_new_link(app: Flask, cast: Cast) -> None:
    admin, page = Browser(app, cast.alice), f"sso/{cast.alice.account_id}/setup-links"
    link = made(cast.alice)
    assert "Show a new link" in admin.get(page).text
    (url,) = SHOWN.findall(admin.done(f"{page}/{link['id']}/renew"))
    assert CLOSED in Browser(app).get(page_of(link["url"])).text
    opened(app, {"url": url})


def test_setup_link_renewal_by_other_account_is_404(app: Flask, cast: Cast) -> None:
    link = made(cast.alice)
    renewing = f"setup-links/{link['id']}/renew"
    for person, account in ((cast.charlie, cast.charlie), (cast.charlie, cast.alice)):
        answer = Browser(app, person).send(f"sso/{account.account_id}/{renewing}")
        assert answer.status_code == 404
    assert Browser(app, cast.bob).send(f"sso/{cast.alice.account_id}/{renewing}").status_code == 403
    holder = opened(app, made(cast.alice))
    answer = holder.send(f"sso/{cast.alice.account_id}/{renewing}")
    assert answer.headers["Location"].startswith("/console/sign-in")
    opened(app, link)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name"),
    ({"name": "x" * 101}, "name"),
    ({"features": []}, "features"),
    ({"features": ["users"]}, "features"),
    ({"expires_in_hours": 0}, "expires_in_hours"),
    ({"expires_in_hours": 337}, "expires_in_hours"),
]


@pytest.mark.parametrize(("body", "field"), REFUSED)
def test_setup_link_body_with_invalid_value_is_422(
    cast: Cast, body: dict[str, Any], field: str
) -> None:
    answer = cast.alice.post(LINKS, {"name": "IT", **body})
    assert (answer.status_code, answer.json["detail"][0]["loc"][:2]) == (422, ["body", field])


def test_setup_link_with_malformed_email_is_invalid_email(cast: Cast) -> None:
    answer = cast.alice.post(LINKS, {"name": "IT", "email": "no address"})
    assert (answer.status_code, answer.json["details"][0]["code"]) == (400, "invalid_email")


def test_setup_link_limit_is_ten_and_system_account_is_403(cast: Cast) -> None:
    links = [made(cast.alice) for _ in range(10)]
    assert cast.alice.post(LINKS, {"name": "one more"}).status_code == 409
    cast.alice.delete(f"{LINKS}/{links[0]['id']}")
    made(cast.alice)
    assert cast.root.post(LINKS, {"name": "IT"}).status_code == 403


def test_setup_link_token_is_in_no_list_or_audit_log(app: Flask, cast: Cast) -> None:
    link = made(cast.alice, email="it@acme.example")
    token = link["url"].rpartition("/")[2]
    opened(app, link)
    log = cast.root.get("audit-logs?table_name=setup_links&limit=100").text
    listed = cast.alice.get(LINKS).text
    assert token not in log + listed
    assert "it@acme.example" not in log


def _cookies(browser: Browser) -> list[Any]:
    return list(browser.client._cookies.values())  # type: ignore[attr-defined]


def _console_rules(app: Flask) -> set[str]:
    return {
        rule.rule
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/console") and "GET" in (rule.methods or ())
    }


def _filled(rule: str, account_id: str) -> str:
    path = rule.replace("<uuid:account_id>", account_id)
    path = re.sub(r"<uuid:\w+>", "019a9f00-0000-7000-8000-000000000000", path)
    return re.sub(r"<[^>]+>", "x", path)


def _is_for_everybody(app: Flask, path: str) -> bool:
    answer = app.test_client().get(path)
    return answer.status_code == 200
