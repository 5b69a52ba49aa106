"""The page of SCIM tokens: one is made once and shown once."""

from __future__ import annotations

import re

from tests.builders import Caller, Cast
from tests.console.browser import Browser, alert

SHOWN = re.compile(r'value="(svc_scim_\w+)" readonly')


def test_console_scim_token_is_created_shown_once_and_revoked(cast: Cast, admin: Browser) -> None:
    home = f"sso/{cast.alice.account_id}"
    page = f"{home}/scim"
    assert f'href="/console/{page}"' in admin.get(home).text
    assert "No tokens yet" in admin.get(page).text
    made = admin.done(page)
    (text,) = SHOWN.findall(made)
    assert "http://atrium.test/scim/v2" in made
    directory = Caller(cast.alice.app, Authorization=f"Bearer {text}")
    assert directory.get("/scim/v2/Users").status_code == 200
    (token,) = cast.alice.get("account/scim/tokens").json["items"]
    listed = admin.get(page).text
    assert token["hint"] in listed
    assert text not in listed
    assert (
        "already been shown"
        in admin.client.get(f"/console/{page}/{token['id']}/made", follow_redirects=True).text
    )
    for _ in range(2):  # pressed twice
        assert "The token is revoked." in admin.done(f"{page}/{token['id']}/revoke")
    assert directory.get("/scim/v2/Users").status_code == 401


def test_console_scim_third_token_is_409(cast: Cast, admin: Browser) -> None:
    page = f"sso/{cast.alice.account_id}/scim"
    admin.done(page)
    admin.done(page)
    refused = admin.send(page)
    assert refused.status_code == 409
    assert "at most 2" in alert(refused)
    assert "New token" not in admin.get(page).text


def test_console_scim_page_requires_admin_of_the_account(
    cast: Cast, admin: Browser, superadmin: Browser
) -> None:
    page = f"sso/{cast.alice.account_id}/scim"
    assert Browser(cast.bob.app, cast.bob).get(page).status_code == 403
    assert admin.get(f"sso/{cast.charlie.account_id}/scim").status_code in (403, 404)
    assert SHOWN.findall(superadmin.done(page))
    assert superadmin.get(f"sso/{cast.root.account_id}/scim").status_code == 404
