"""The product's own face: settings, links of mails, brands of accounts."""

from __future__ import annotations

import base64
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from flask import Flask
from PIL import Image

from tests.builders import PASSWORD, Caller, Cast, make_user
from tests.mailbox import body_of, link_in, outbox, run_jobs, token_in
from tests.manifest.manifests import exported

PAGE = "https://app.example.com/password"
LINK = PAGE + "?token={token}"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1">{}</svg>'
NEW_PASSWORD = "Correct-horse-22"


def data(content: bytes | str, kind: str = "svg+xml") -> str:
    """A data address of an image."""
    raw = content.encode() if isinstance(content, str) else content
    return f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"


def png(width: int = 8) -> bytes:
    """A PNG of this width."""
    target = BytesIO()
    Image.new("1", (width, 1)).save(target, "PNG")
    return target.getvalue()


def refused(answer: Any) -> list[tuple[str, str]]:
    """The fields and codes of a refusal."""
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def forget(user: Caller, **changes: str) -> Any:
    """The answer to a request for a reset link."""
    body = {"account": user.slug, "email": user.email, **changes}
    return Caller(user.app).post("auth/forgot-password", body)


def mailed_link(user: Caller, **changes: str) -> str:
    """The link of a new reset mail."""
    assert forget(user, **changes).status_code == 200
    run_jobs(user.app)
    mail = outbox(user.app)[-1]
    assert mail["To"] == user.email
    return link_in(mail)


def test_product_is_set_by_superadmins_and_merges(cast: Cast) -> None:
    assert cast.alice.get("product").status_code == 403
    assert cast.alice.put("product", {"name": "Mine"}).status_code == 403
    body = {"name": "Helpdesk", "links": {"reset_password": LINK, "sign_in": "https://a.example"}}
    assert cast.root.put("product", body).status_code == 200
    body = {"support_email": "help@helpdesk.example", "links": {"sign_in": None}}
    stored = cast.root.patch("product", body).json
    assert stored == cast.root.get("product").json
    assert stored["name"] == "Helpdesk"
    assert stored["links"] == {"reset_password": LINK}
    assert stored["support_email"] == "help@helpdesk.example"
    assert cast.root.put("product", {"name": None}).json["name"] is None
    shown = cast.root.put("product", {"name": "", "logo": "", "accent_color": ""}).json
    assert [shown[name] for name in ("name", "logo", "accent_color")] == [None] * 3


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a color by name": ({"accent_color": "red"}, "accent_color", "pattern_mismatch"),
    "a script as an address": ({"url": "javascript:alert(1)"}, "url", "invalid_url"),
    "no address": ({"support_email": "help"}, "support_email", "invalid_email"),
    "an empty address": ({"support_email": ""}, "support_email", "invalid_email"),
    "an empty front page": ({"url": ""}, "url", "invalid_url"),
    "an empty page of terms": ({"terms_url": ""}, "terms_url", "invalid_url"),
    "an empty page of privacy": ({"privacy_url": ""}, "privacy_url", "invalid_url"),
    "a kind that is none": ({"links": {"home": LINK}}, "links.home", "invalid_option"),
    "a link without token": ({"links": {"invitation": PAGE}}, "links.invitation", "invalid_url"),
    "an unknown placeholder": (
        {"links": {"invitation": LINK + "&user={user}"}},
        "links.invitation",
        "invalid_url",
    ),
    "credentials in a link": (
        {"links": {"sign_in": "https://app.example.com@evil.example/"}},
        "links.sign_in",
        "invalid_url",
    ),
    "a control character": ({"name": "Help\ndesk"}, "name", "invalid_name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_setting_of_the_product_is_400(cast: Cast, case: str) -> None:
    body, field, code = REFUSED[case]
    assert refused(cast.root.put("product", body))[0][0] == field
    assert code in {"invalid_name", *[code for _, code in refused(cast.root.put("product", body))]}
    assert cast.root.get("product").json["links"] == {}


LOGOS = {
    "https": "https://cdn.example.com/logo.svg",
    "PNG": data(png(), "png"),
    "SVG": data(SVG.format('<rect width="1" height="1" fill="url(#g)"/>')),
}
NO_LOGOS = {
    "http": "http://cdn.example.com/logo.svg",
    "next directive": "https://cdn.example.com;script-src/logo.svg",
    "next policy": "https://cdn.example.com,x/logo.svg",
    "any host": "https://*/logo.svg",
    "script": data(SVG.format("<script>alert(1)</script>")),
    "event": data(SVG.format('<rect onload="alert(1)"/>')),
    "link": data(SVG.format('<a href="https://evil.example"><rect/></a>')),
    "foreign": data(SVG.format("<foreignObject><p/></foreignObject>")),
    "style": data(SVG.format("<style>@import 'https://evil.example'</style>")),
    "loaded": data(SVG.format('<rect fill="url(https://evil.example/x)"/>')),
    "entity": data('<!DOCTYPE svg [<!ENTITY x "y">]>' + SVG.format("<text>&x;</text>")),
    "stylesheet": data('<?xml-stylesheet href="https://evil.example"?>' + SVG.format("")),
    "stylesheet behind a comment": data(
        '<?xml-stylesheet href="https://evil.example"?><!-- x -->' + SVG.format("")
    ),
    "loaded by image-set": data(
        SVG.format("<g style=\"mask: image-set('https://evil.example')\"/>")
    ),
    "other XML": data("<html/>"),
    "XHTML inside": data(SVG.format('<p xmlns="http://www.w3.org/1999/xhtml"/>')),
    "HTML as PNG": data("<html>", "png"),
    "wide": data(png(5000), "png"),
    "GIF": data(b"GIF89a", "gif"),
    "too long": data(b"\x89PNG" + b"0" * (256 * 1024), "png"),
}


@pytest.mark.parametrize("case", LOGOS)
def test_logo_is_shown_from_own_origin(app: Flask, cast: Cast, case: str) -> None:
    assert cast.root.put("product", {"logo": LOGOS[case]}).json["logo"] == LOGOS[case]
    shown = Caller(app).get("product/logo")
    if case == "https":
        assert shown.status_code == 404
        return
    assert shown.status_code == 200
    assert shown.mimetype == LOGOS[case][5 : LOGOS[case].index(";")]
    assert "sandbox" in shown.headers["Content-Security-Policy"]
    assert base64.b64decode(LOGOS[case].partition(",")[2]) == shown.data
    again = Caller(app).get("product/logo", headers={"If-None-Match": shown.headers["ETag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("case", NO_LOGOS)
def test_logo_that_could_run_or_load_is_400(cast: Cast, case: str) -> None:
    assert refused(cast.root.put("product", {"logo": NO_LOGOS[case]})) in (
        [("logo", "invalid_image")],
        [("logo", "too_long")],
    )


def test_mails_come_from_the_product_and_lead_to_its_pages(cast: Cast) -> None:
    link = "https://{account}.example.com/reset#token={token}"
    body = {"name": "Helpdesk", "links": {"reset_password": link}, "support_email": "a@b.example"}
    assert cast.root.put("product", body).status_code == 200
    address = mailed_link(cast.bob)
    assert address.startswith("https://acme.example.com/reset#token=AA")
    mail = outbox(cast.bob.app)[-1]
    assert mail["From"].addresses[0].display_name == "Helpdesk"
    assert "a@b.example" in body_of(mail)
    assert "atrium" not in (body_of(mail) + body_of(mail, "html") + mail["Message-ID"]).lower()
    body = {"token": address.partition("token=")[2], "new_password": NEW_PASSWORD}
    assert Caller(cast.bob.app).post("auth/reset-password", body).status_code == 200


def test_links_of_superadmins_lead_to_the_service(cast: Cast) -> None:
    cast.root.put("product", {"links": {"reset_password": LINK}})
    assert "/welcome/reset-password" in mailed_link(cast.root)


def test_redirect_uri_is_of_the_list_or_a_link_of_the_product(cast: Cast) -> None:
    listed, elsewhere = "https://client.example.com/reset?x=1", "https://evil.example/"
    assert cast.alice.patch("account", {"allowed_redirect_uris": [listed]}).status_code == 200
    cast.root.put("product", {"links": {"reset_password": LINK}})
    assert mailed_link(cast.bob, redirect_uri=listed).startswith(f"{listed}&token=AA")
    assert mailed_link(cast.bob, redirect_uri=PAGE).startswith(f"{PAGE}?token=AA")
    for uri in (elsewhere, listed + "&y=2", PAGE + "/", "javascript:alert(1)"):
        assert refused(forget(cast.bob, redirect_uri=uri)) == [("redirect_uri", "invalid_option")]
    # Nobody learns whether an account or user exists.
    for account in ("globex", "nowhere"):
        body = {"account": account, "email": cast.bob.email, "redirect_uri": listed}
        answer = Caller(cast.bob.app).post("auth/forgot-password", body)
        assert refused(answer) == [("redirect_uri", "invalid_option")]


def test_token_is_void_once_its_address_is_off_the_list(cast: Cast) -> None:
    listed = "https://client.example.com/reset"
    cast.alice.patch("account", {"allowed_redirect_uris": [listed]})
    token = mailed_link(cast.bob, redirect_uri=listed).partition("token=")[2]
    cast.alice.patch("account", {"allowed_redirect_uris": []})
    body = {"token": token, "new_password": NEW_PASSWORD}
    answer = Caller(cast.bob.app).post("auth/reset-password", body)
    assert (answer.status_code, answer.json["error"]) == (400, "invalid_token")


def test_tokens_of_pii_members_go_to_no_address_from_outside(app: Flask, cast: Cast) -> None:
    listed = "https://client.example.com/reset"
    cast.root.put("product", {"accounts_may_brand": True})
    make_user(app, cast.alice.account_id, "eve@acme.example", "admin")
    body = {"account": "acme", "email": "eve@acme.example", "password": PASSWORD}
    token = Caller(app).post("auth/login", body).json["token"]
    eve = Caller(app, Authorization=f"Bearer {token}")
    assert eve.patch("account", {"allowed_redirect_uris": [listed]}).status_code == 200
    links = {"reset_password": listed + "?token={token}"}
    assert eve.put("account/brand", {"links": links}).json["links"] == links
    mailed = mailed_link(cast.bob)
    assert mailed.startswith(listed)
    groups = cast.alice.get("groups").json["items"]
    group = next(one["id"] for one in groups if one["name"] == "pii_access")
    joined = cast.alice.post(f"groups/{group}/members", {"user_id": cast.bob.id})
    assert joined.status_code in (200, 201, 204), joined.json
    body = {"token": mailed.partition("token=")[2], "new_password": NEW_PASSWORD}
    assert Caller(app).post("auth/reset-password", body).json["error"] == "invalid_token"
    assert "/welcome/reset-password" in mailed_link(cast.bob)
    assert "/welcome/reset-password" in mailed_link(cast.bob, redirect_uri=listed)


def test_brand_needs_the_operators_consent_and_listed_links(cast: Cast) -> None:
    for answer in (cast.alice.get("account/brand"), cast.alice.put("account/brand", {})):
        assert (answer.status_code, answer.json["error"]) == (403, "branding_off")
    cast.root.put("product", {"name": "Helpdesk", "accounts_may_brand": True})
    assert cast.bob.get("account/brand").status_code == 403
    body = {"links": {"reset_password": LINK}}
    assert refused(cast.alice.put("account/brand", body)) == [
        ("links.reset_password", "invalid_option")
    ]
    cast.alice.patch("account", {"allowed_redirect_uris": [PAGE]})
    body |= {"name": "Acme Support", "logo": data(png(), "png")}
    assert cast.alice.put("account/brand", body).status_code == 200
    assert mailed_link(cast.bob).startswith(PAGE)
    sender = outbox(cast.bob.app)[-1]["From"].addresses[0].display_name
    assert sender == "Acme Support"
    # Other accounts see nothing of it.
    assert "/welcome/reset-password" in mailed_link(cast.charlie)
    assert outbox(cast.bob.app)[-1]["From"].addresses[0].display_name == "Helpdesk"
    anyone = Caller(cast.bob.app)
    assert anyone.get("product/logo?account=acme").status_code == 200
    assert anyone.get("product/logo?account=globex").status_code == 404
    cast.root.put("product", {"accounts_may_brand": False})
    assert "/welcome/reset-password" in mailed_link(cast.bob)
    assert anyone.get("product/logo?account=acme").status_code == 404


FRAGMENTS = {
    "token={token}": True,
    "{token}": True,
    "token={token}&at={account}": True,
    "//evil.example/{token}": False,
    "to=https://evil.example/&token={token}": False,
}


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_brand_tells_pages_of_the_product_nothing_but_placeholders(
    cast: Cast, fragment: str
) -> None:
    cast.root.put("product", {"accounts_may_brand": True, "links": {"reset_password": LINK}})
    answer = cast.alice.put("account/brand", {"links": {"reset_password": f"{PAGE}#{fragment}"}})
    assert answer.status_code == (200 if FRAGMENTS[fragment] else 400), answer.json


@pytest.mark.parametrize("groups", [["pii_access"], []])
def test_invitations_into_pii_access_lead_to_no_address_from_outside(
    app: Flask, cast: Cast, groups: list[str]
) -> None:
    listed = "https://client.example.com/join"
    cast.root.put("product", {"accounts_may_brand": True})
    make_user(app, cast.alice.account_id, "eve@acme.example", "admin")
    body = {"account": "acme", "email": "eve@acme.example", "password": PASSWORD}
    eve = Caller(app, Authorization=f"Bearer {Caller(app).post('auth/login', body).json['token']}")
    assert eve.patch("account", {"allowed_redirect_uris": [listed]}).status_code == 200
    eve.put("account/brand", {"links": {"invitation": listed + "?token={token}"}})
    for more in ({}, {"redirect_uri": listed}):
        body = {"email": "carol@acme.example", "groups": groups, **more}
        assert cast.alice.post("invitations", body).status_code == 201
        run_jobs(app)
        assert link_in(outbox(app)[-1]).startswith(listed) is not bool(groups)
        link = cast.alice.post("invitations", {**body, "send_mail": False}).json["link"]
        assert link.startswith(listed) is not bool(groups)


def test_mails_to_whom_an_invitation_was_not_mailed_are_limited(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], login_rate_limit="on", mail_tries=2)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    body, accepted = {"email": "dora@other.example", "send_mail": False}, []
    for _ in range(3):
        token = cast.alice.post("invitations", body).json["token"]
        path = f"invitations/{token}/accept"
        answer = Caller(app).post(path, {"password": NEW_PASSWORD})
        accepted.append(answer.status_code)
        if answer.status_code == 200:
            cast.alice.delete(f"account/users/{answer.json['user']['id']}")
    assert accepted == [200, 200, 429]


def test_links_are_set_by_superadmins_who_have_signed_in(app: Flask, cast: Cast) -> None:
    cast.root.put("product", {"links": {"reset_password": LINK}})
    key = Caller(app, **{"X-API-Key": cast.root.post("api-keys", {"name": "ci"}).json["key"]})
    evil = {"links": {"reset_password": "https://evil.example/?token={token}"}}
    for links, expected in ((evil, 403), ({"links": {"reset_password": LINK}}, 200)):
        body = {"name": f"Desk {expected}", **links}
        assert key.put("product", body).status_code == expected
        manifest = {"version": 1, "product": {**body, "url": "https://desk.example"}}
        plan = key.post("manifest/plan", {"manifest": manifest}).json
        body = {"manifest": manifest, "plan_hash": plan["plan_hash"]}
        # A plan has what is forbidden among its problems.
        answer = key.post("manifest/apply", body)
        assert answer.status_code == (200 if expected == 200 else 400), answer.json
    assert cast.root.get("product").json["links"] == {"reset_password": LINK}


def test_invitation_without_mail_answers_the_link(cast: Cast) -> None:
    cast.root.put("product", {"links": {"invitation": "https://app.example.com/join/{token}"}})
    before = len(outbox(cast.alice.app))
    body = {"email": "dora@acme.example", "send_mail": False}
    answer = cast.alice.post("invitations", body).json
    run_jobs(cast.alice.app)
    assert len(outbox(cast.alice.app)) == before
    assert answer["link"] == f"https://app.example.com/join/{answer['token']}"
    path = f"invitations/{answer['token']}/accept"
    accepted = Caller(cast.alice.app).post(path, {"password": NEW_PASSWORD}).json
    assert accepted["user"]["email_verified"] is False
    sent = cast.alice.post("invitations", {"email": "eve@acme.example"}).json
    assert "link" not in sent
    run_jobs(cast.alice.app)
    assert link_in(outbox(cast.alice.app)[-1]).startswith("https://app.example.com/join/AA")


def test_registration_leads_to_an_address_of_the_operator(app: Flask, cast: Cast) -> None:
    listed = "https://app.example.com/verify"
    body = {
        "account_name": "日本",
        "name": "Ann Smith",
        "email": "ann@new.example",
        "password": "Correct-horse-1",
    }
    answer = Caller(app).post("auth/register", {**body, "redirect_uri": listed})
    assert refused(answer) == [("redirect_uri", "invalid_option")]
    headers = {"X-Account-ID": "system"}
    settings = {"allowed_redirect_uris": [listed]}
    assert cast.root.patch("account", settings, headers=headers).status_code == 200
    answer = Caller(app).post("auth/register", {**body, "redirect_uri": listed})
    assert answer.status_code == 201
    assert answer.json["account"]["name"] == "日本"
    assert answer.json["user"]["name"] == "Ann Smith"
    run_jobs(app)
    mail = [one for one in outbox(app) if one["To"] == "ann@new.example"][-1]
    assert link_in(mail).startswith(f"{listed}?token=")
    verified = Caller(app).post("auth/verify-email", {"token": token_in(mail)})
    assert verified.status_code == 200


def test_product_is_in_the_manifest(cast: Cast) -> None:
    cast.root.put("product", {"name": "Helpdesk", "links": {"reset_password": LINK}})
    before = exported(cast.root)["product"]
    assert before == {"name": "Helpdesk", "links": {"reset_password": LINK}}
    manifest = {"version": 1, "product": {"name": "Desk", "links": {"reset_password": None}}}
    plan = cast.root.post("manifest/plan", {"manifest": manifest}).json
    assert [one["kind"] for one in plan["operations"]] == ["product"]
    body = {"manifest": manifest, "plan_hash": plan["plan_hash"]}
    assert cast.root.post("manifest/apply", body).status_code == 200
    assert cast.root.get("product").json["name"] == "Desk"
    back = cast.root.post("manifest/plan", {"manifest": plan["reverse"]}).json
    body = {"manifest": plan["reverse"], "plan_hash": back["plan_hash"]}
    assert cast.root.post("manifest/apply", body).status_code == 200
    assert exported(cast.root)["product"] == before
    wrong = {"version": 1, "product": {"accent_color": "red"}}
    problems = cast.root.post("manifest/plan", {"manifest": wrong}).json["problems"]
    assert problems[0]["field"] == "product.accent_color"
