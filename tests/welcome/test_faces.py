"""The face of hosted pages: names, colors that can be read, logos."""

from __future__ import annotations

import re

import pyotp
import pytest
from flask import Flask

from app.accounts.product import faces, images
from app.web import html
from tests.audit.chains import entries
from tests.auth.test_second_factors import login, session_of
from tests.builders import Cast

PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChw"
    "GA60e6kgAAAABJRU5ErkJggg=="
)


@pytest.mark.parametrize(
    "color",
    ["#000000", "#ffffff", "#ffff00", "#0b5fff", "#0d9488", "#808080", "#ff0000", "#00ff00"],
)
def test_accent_color_can_be_read_on_light_and_dark(app: Flask, color: str) -> None:
    answer = app.test_client().get(f"/welcome/accent/{color[1:]}.css")
    assert (answer.status_code, answer.mimetype) == (200, "text/css")
    found = re.findall(r"#[0-9a-f]{6}", answer.text)
    accent, on_accent, on_light, on_dark = found
    if faces.contrast(color, on_accent) >= faces.MIN_CONTRAST:
        assert accent == color
    assert faces.contrast(accent, on_accent) >= 4.5
    assert faces.contrast(on_light, faces.LIGHTEST) >= 4.5
    assert faces.contrast(on_dark, faces.DARKEST) >= 4.5


@pytest.mark.parametrize("color", ["0b5ff", "0b5fff0", "red", "0b5fff;x", "%23ffffff"])
def test_stylesheet_of_no_color_is_404(app: Flask, color: str) -> None:
    assert app.test_client().get(f"/welcome/accent/{color}.css").status_code == 404


def test_pages_show_the_account_brand_where_it_may_have_one(app: Flask, cast: Cast) -> None:
    cast.root.put("product", {"name": "Helpdesk", "logo": PNG, "accent_color": "#0b5fff"})
    client = app.test_client()
    page = client.get("/welcome/sign-in?account=acme").text
    assert ('alt="Helpdesk"' in page, "/welcome/accent/0b5fff.css" in page) == (True, True)
    assert 'src="/api/v1/product/logo"' in page
    cast.root.put("product", {"accounts_may_brand": True})
    logo = "https://cdn.acme.example/logo.svg"
    cast.alice.put("account/brand", {"name": "Acme Care", "accent_color": "#aa0000", "logo": logo})
    for path in ("/welcome/sign-in?account=acme", "/welcome/forgot-password?account=acme"):
        own = client.get(path)
        assert ('alt="Acme Care"' in own.text, logo in own.text) == (True, True)
        assert "/welcome/accent/aa0000.css" in own.text
        assert (
            "img-src https://cdn.acme.example 'self' data:"
            in own.headers["Content-Security-Policy"]
        )
    cast.root.post("accounts", {"name": "Acme Two", "slug": "acme-two"})
    for path in ("sign-in", "forgot-password", "resend-verification"):
        other = client.get(f"/welcome/{path}?account=acme-two")
        assert ("Acme Care" in other.text, 'alt="Helpdesk"' in other.text) == (False, True), path
    other = client.get("/welcome/sign-in?account=globex")
    assert ("Acme Care" in other.text, 'alt="Helpdesk"' in other.text) == (False, True)


@pytest.mark.parametrize("host", ["a.example;script-src", "a.example,x", "*"])
def test_logo_that_was_set_before_does_not_widen_the_policy_of_pages(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(images, "problem_of", lambda logo: None)
    cast.root.put("product", {"accounts_may_brand": True})
    assert cast.alice.put("account/brand", {"logo": f"https://{host}/x"}).status_code == 200
    page = app.test_client().get("/welcome/sign-in?account=acme")
    assert f"https://{host}/x" in page.text
    assert page.headers["Content-Security-Policy"] == html.POLICY


def test_pages_without_a_product_show_the_host(app: Flask, cast: Cast) -> None:
    assert ">atrium.test</span>" in app.test_client().get("/welcome/sign-in").text


def test_authenticator_apps_and_passkeys_show_the_product(app: Flask, cast: Cast) -> None:
    cast.root.put("product", {"name": "Helpdesk"})
    session = session_of(login(cast.bob).json, app)
    url = session.post("auth/mfa/totp", {"name": "Phone"}).json["otpauth_url"]
    assert pyotp.parse_uri(url).issuer == "Helpdesk (Acme)"
    options = session.post("auth/mfa/passkeys/options").json["options"]
    assert options["rp"]["name"] == "Helpdesk"


def test_support_and_legal_pages_are_linked(app: Flask, cast: Cast) -> None:
    body = {
        "support_email": "help@a.example",
        "privacy_url": "https://a.example/privacy",
        "terms_url": "https://a.example/terms",
    }
    cast.root.put("product", body)
    page = app.test_client().get("/welcome/sign-in").text
    assert all(value in page for value in body.values())


def test_logos_are_audited_by_their_digests(app: Flask, cast: Cast) -> None:
    cast.root.put("product", {"name": "Helpdesk", "logo": PNG, "accounts_may_brand": True})
    cast.alice.put("account/brand", {"logo": PNG})
    values = [
        str(entry["new_value"])
        for table in ("instance_settings", "account_brands")
        for entry in entries(cast.root, table_name=table)
    ]
    assert [value for value in values if "Helpdesk" in value]
    assert sum("sha256:" in value for value in values) == 2
    assert not [value for value in values if "base64" in value]
