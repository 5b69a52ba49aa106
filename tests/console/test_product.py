"""The pages of the product's own face and of an account's brand."""

from __future__ import annotations

from io import BytesIO

from tests.accounts.test_product import SVG
from tests.builders import Cast
from tests.console.browser import Browser, beside

PAGE = "https://app.example.com/password"


def test_console_product_is_set_by_superadmins(superadmin: Browser, admin: Browser) -> None:
    assert admin.get("product").status_code == 403
    answer = superadmin.send("product", name="Helpdesk", reset_password=PAGE, accent_color="red")
    assert answer.status_code == 400
    assert "{token}" in (beside(answer, "reset_password") or "")
    assert "color such as" in (beside(answer, "accent_color") or "")
    image = (BytesIO(SVG.format("<rect/>").encode()), "logo.svg")
    link = PAGE + "?token={token}"
    page = superadmin.done("product", name="Helpdesk", reset_password=link, image=image)
    assert "The product is saved." in page
    assert link in page
    assert "product/logo" in page
    page = superadmin.done("product", name="Helpdesk", remove_logo="true", reset_password="")
    assert "product/logo" not in page
    assert link not in page
    image = (BytesIO(SVG.format("<script/>").encode()), "logo.svg")
    answer = superadmin.send("product", name="Helpdesk", image=image)
    assert "no scripts" in (beside(answer, "logo") or "")


def test_console_brand_is_shown_where_accounts_may_have_one(cast: Cast, admin: Browser) -> None:
    path = f"settings/{cast.alice.account_id}"
    assert "Brand" not in admin.get(path).text
    assert admin.get(f"{path}/brand").status_code == 403
    cast.root.put("product", {"accounts_may_brand": True})
    assert f"{path}/brand" in admin.get(path).text
    answer = admin.send(f"{path}/brand", name="Acme", reset_password=PAGE + "?token={token}")
    assert "allowed_redirect_uris" in (beside(answer, "reset_password") or "")
    cast.alice.patch("account", {"allowed_redirect_uris": [PAGE]})
    page = admin.done(f"{path}/brand", name="Acme", reset_password=PAGE + "?token={token}")
    assert "The settings are saved." in page
    assert cast.alice.get("account/brand").json["name"] == "Acme"
