"""Pages of extensions in the console."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from tests.builders import Caller
from tests.console.browser import HOSTILE, sign_in, token
from tests.extensions.folders import Extended, extended

PRICES, READING = "/console/x/shop/prices", "/console/x/shop/reading"


@pytest.fixture(scope="module")
def shop() -> Iterator[Extended]:
    """An application with the extension shop."""
    with extended("sqlite", "shop") as one:
        yield one


def browser(shop: Extended, caller: Caller) -> FlaskClient:
    client = shop.app.test_client()
    assert sign_in(client, caller).status_code == 303
    return client


def test_page_has_the_frame_of_the_console(shop: Extended) -> None:
    page = browser(shop, shop.cast.alice).get(PRICES)
    assert page.status_code == 200
    assert "<h1>Prices</h1>" in page.text
    assert f'href="{PRICES}" aria-current="page"' in page.text
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert page.headers["Cache-Control"] == "no-store"


def test_form_adds_a_price_and_leads_on(shop: Extended) -> None:
    client = browser(shop, shop.cast.alice)
    form = {"article": HOSTILE, "amount": "2"}
    assert client.post(PRICES, data=form).status_code == 400  # without a token
    answer = client.post(PRICES, data={"csrf_token": token(client), **form})
    assert (answer.status_code, answer.location) == (303, PRICES)
    page = client.get(PRICES).text
    assert "Price added." in page
    assert HOSTILE not in page
    one = re.search(rf'{PRICES}/[0-9a-f-]{{36}}"', page)
    assert one
    detail = client.get(one[0][:-1]).text
    assert "&lt;b&gt;" in detail
    assert "<b>" not in detail
    assert HOSTILE not in detail
    assert f'<li class="breadcrumb-item"><a href="{PRICES}">Prices</a></li>' in detail
    strangers = browser(shop, shop.cast.charlie)
    assert strangers.get(one[0][:-1]).status_code == 404
    assert "csrf_token" in strangers.get(PRICES).text


def test_page_is_for_its_role(shop: Extended) -> None:
    bob, nobody = browser(shop, shop.cast.bob), shop.app.test_client()
    assert bob.get(PRICES).status_code == 403
    page = bob.get(READING)
    assert "bob" in page.text
    assert f'href="{READING}"' in page.text
    assert f'href="{PRICES}"' not in page.text
    assert nobody.get(READING).status_code == 302
    assert nobody.get(READING).location.startswith("/console/sign-in")


def test_superadmins_open_it_in_an_account(shop: Extended) -> None:
    root, account = browser(shop, shop.cast.root), shop.cast.alice.account_id
    own = browser(shop, shop.cast.alice)
    own.post(PRICES, data={"csrf_token": token(own), "article": "of acme", "amount": "2"})
    within = PRICES.replace("/console", f"/console/accounts/{account}")
    assert "of acme" in root.get(within).text
    assert f'href="{within}"' in root.get("/console").text
    fresh = browser(shop, shop.cast.root)
    choice = fresh.get(PRICES)
    assert "Choose an account." in choice.text
    assert f'href="{within}"' in choice.text
    assert "of acme" not in choice.text
    one = PRICES + "/00000000-0000-0000-0000-000000000009"
    assert fresh.get(one).status_code == 404
    form = {"csrf_token": token(fresh), "article": "of nobody", "amount": "2"}
    assert fresh.post(PRICES, data=form).status_code == 404
    assert root.get(PRICES).location == within  # the account chosen before


def test_refusal_of_a_form_is_shown(shop: Extended) -> None:
    client = browser(shop, shop.cast.alice)
    form = {"csrf_token": token(client), "amount": "2"}
    refused = client.post(PRICES, data={**form, "article": "lead"})
    assert refused.status_code == 400
    assert "<code>article</code>: Lead is too heavy." in refused.text
    refused = client.post(PRICES, data={**form, "article": "iron"})
    assert (refused.status_code, refused.text.count("Iron is too hard.")) == (400, 1)
    answer = client.post(PRICES, data={**form, "article": "gold"}, follow_redirects=True)
    assert '<p class="alert alert-danger" role="alert">Gold has no price.</p>' in answer.text


def test_texts_are_translated(shop: Extended) -> None:
    client = browser(shop, shop.cast.alice)
    page = client.get(PRICES, headers={"Accept-Language": "de"}).text
    assert "<h1>Preisliste</h1>" in page
    assert "Preis hinzufügen" in page
    assert "Abmelden" in page  # the frame


def test_static_files_have_an_address_with_a_version(shop: Extended) -> None:
    client = browser(shop, shop.cast.alice)
    found = re.search(r'href="(/static/[0-9a-f]{12}/x/shop/shop\.css)"', client.get(PRICES).text)
    assert found
    file = client.get(found[1], buffered=True)
    assert "letter-spacing" in file.text
    assert "immutable" in file.headers["Cache-Control"]
    for path in ("x/shop/../__init__.py", "x/shop/missing.css", "x/other/shop.css"):
        assert client.get(f"/static/{path}").status_code == 404


def test_audit_log_of_the_console_shows_rows_of_extensions(shop: Extended) -> None:
    own = browser(shop, shop.cast.alice)
    own.post(PRICES, data={"csrf_token": token(own), "article": "in the log", "amount": "2"})
    root, account = browser(shop, shop.cast.root), shop.cast.alice.account_id
    page = root.get(f"/console/audit?account={account}", follow_redirects=True)
    assert page.status_code == 200
    assert "in the log" in page.text


def test_page_redirects_to_its_own_address() -> None:
    page = (
        "from app.extend import console_page\n"
        '@console_page("/page", title="Page")\n'
        "def page(caller, request):\n"
        '    return request.redirect(request.args.get("to"))\n'
    )
    with extended("sqlite", files={"leading/__init__.py": page}) as one:
        client = browser(one, one.cast.alice)
        for to, place in (
            ("/page%3Fa=1%26b=2%23c", "/page?a=1&b=2#c"),
            ("/a%0D%0AX:%20y", "/a%0D%0AX:%20y"),
            ("//other.example", "//other.example"),
            ("/%C3%BC", "/%C3%BC"),
        ):
            answer = client.get(f"/console/x/leading/page?to={to}")
            assert (answer.status_code, answer.location) == (303, f"/console/x/leading{place}")


def test_templates_are_escaped_whatever_they_are_named() -> None:
    page = (
        "from app.extend import console_page\n"
        '@console_page("/page", title="Page")\n'
        "def page(caller, request):\n"
        '    return request.render(request.args.get("name"), value="<i>x</i>")\n'
    )
    names = ("a.html", "a.html.j2", "a.jinja", "a.txt")
    files = {f"named/templates/{name}": "<p>{{ value }}</p>" for name in names}
    files["named/templates/outer.html"] = '{% include "x/named/a.txt" %}'
    with extended("sqlite", files={"named/__init__.py": page, **files}) as one:
        client = browser(one, one.cast.alice)
        for name in (*names, "outer.html"):
            text = client.get(f"/console/x/named/page?name={name}").text
            assert "<p>&lt;i&gt;x&lt;/i&gt;</p>" in text, name
