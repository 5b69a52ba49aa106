"""The pages of texts of mails, of senders, and of who may have a brand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flask import Flask

from tests.builders import Cast
from tests.console.browser import Browser, beside
from tests.mailbox import outbox, run_jobs

TEXT = "Join {{ account.name }}:\n\n{{ link }}"


def test_console_text_of_the_instance_is_changed_by_superadmins(
    app: Flask, cast: Cast, superadmin: Browser, admin: Browser
) -> None:
    page, one = "product/mails", "product/mails/invitation/en"
    for path in (page, one, f"{one}/preview"):
        assert admin.get(path).status_code == 403
    assert one in superadmin.get(page).text
    assert superadmin.get("product/mails/nothing/en").status_code == 404
    answer = superadmin.send(one, subject="x", text="Hello", reply_to="nobody")
    assert answer.status_code == 400
    assert "link" in (beside(answer, "text") or "")
    assert beside(answer, "reply_to")
    shown = superadmin.done(one, subject="Come", text=TEXT)
    assert "The text is saved." in shown
    assert "changed" in superadmin.get(page).text
    preview = superadmin.get(f"{one}/preview")
    assert "Join Acme" in preview.text
    assert "sandbox" in preview.headers["Content-Security-Policy"]
    assert "frame-src 'self'" in superadmin.get(one).headers["Content-Security-Policy"]
    tried = superadmin.send(f"{one}/preview", subject="x", text=f"<b>{TEXT}")
    assert "&lt;b&gt;Join" in tried.text
    wrong = superadmin.send(f"{one}/preview", subject="x", html="<script>{{ link }}</script>")
    assert wrong.mimetype == "text/plain"
    answer = superadmin.send(one, subject="Tried", text=TEXT, do="test")
    assert "is on its way" in answer.text
    run_jobs(app)
    assert outbox(app)[-1]["Subject"] == "Tried"
    assert cast.root.get("mail-templates/invitation/en").json["subject"] == "Come"
    superadmin.done(f"{one}/reset")
    assert not cast.root.get("mail-templates/invitation/en").json["is_changed"]


def test_console_text_of_an_account_needs_consent(
    cast: Cast, superadmin: Browser, admin: Browser
) -> None:
    page = f"settings/{cast.alice.account_id}/mails"
    one = f"{page}/invitation/en"
    assert one not in admin.get(page).text
    for path in (one, f"{one}/preview"):
        assert admin.get(path).status_code == 403
    account = f"accounts/{cast.alice.account_id}"
    assert "As the product says: no" in superadmin.get(account).text
    superadmin.done(f"{account}/brand", may_brand="yes")
    assert cast.root.get(account).json["may_brand"] is True
    assert one in admin.get(page).text
    answer = admin.send(one, subject="x", text=f"{TEXT} www.evil.example")
    assert "Mail programs" in (beside(answer, "text") or "")
    assert "The text is saved." in admin.done(one, subject="x", text=TEXT)
    assert cast.alice.get("account/mail-templates/invitation/en").json["is_changed"]
    assert admin.get(f"settings/{cast.charlie.account_id}/mails").status_code == 404
    assert admin.get(f"settings/{cast.charlie.account_id}/mails/invitation/en").status_code == 404
    superadmin.done(f"{account}/brand", may_brand="")
    assert cast.root.get(account).json["may_brand"] is None


def test_console_sender_of_an_account(
    app: Flask, cast: Cast, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"settings/{cast.alice.account_id}/mails"
    assert "has not set up other ones" in admin.get(page).text
    settings = app.extensions["atrium.config"]
    offered = replace(settings, mail_spf=("include:spf.service.example",))
    monkeypatch.setitem(app.extensions, "atrium.config", offered)
    assert "include:spf.service.example" in admin.get(page).text
    answer = admin.send(f"{page}/sender", mail_from="news@acme.example")
    assert "has not verified the domain" in (beside(answer, "mail_from") or "")
    assert cast.alice.get("account").json["mail_from"] is None
