"""The page about what an account uses, and its quotas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import time_machine
from flask import Flask

from tests.builders import Cast, make_collection, make_record
from tests.console.browser import Browser


@pytest.fixture
def furnished(app: Flask, cast: Cast) -> Cast:
    """The cast, with records."""
    make_collection(cast.root)
    for n in range(3):
        make_record(cast.alice, title=str(n))
    return cast


def test_console_usage_page_shows_own_account(furnished: Cast, admin: Browser) -> None:
    account_id = furnished.alice.account_id
    unlimited = admin.get(f"usage/{account_id}").text
    assert "No limits are set." in unlimited
    assert ">Limit<" not in unlimited
    furnished.root.patch(f"accounts/{account_id}/quotas", {"records": {"hard": 4000}})
    assert admin.get("usage").location == f"/console/usage/{account_id}"
    page = admin.get(f"usage/{account_id}")
    assert page.status_code == 200
    assert page.text.count("<svg viewBox") >= 2
    assert "4,000" in page.text
    assert "No limits are set." not in page.text
    assert 'name="records_hard"' not in page.text  # superadmins set the quotas
    exported = admin.get(f"usage/{account_id}/csv")
    assert exported.mimetype == "text/csv"
    assert exported.text.splitlines()[-1].split(",")[5] == "3"


def test_console_usage_page_access_per_role(app: Flask, furnished: Cast) -> None:
    path = f"usage/{furnished.alice.account_id}"
    for caller, status in ((furnished.bob, 403), (furnished.charlie, 404)):
        browser = Browser(app, caller)
        assert browser.get(path).status_code == status
        assert browser.get(f"{path}/csv").status_code == status
        assert browser.send(path, records_hard="1").status_code == 403


def test_console_quotas_are_set_by_superadmin(furnished: Cast, superadmin: Browser) -> None:
    path = f"usage/{furnished.alice.account_id}"
    quotas = f"accounts/{furnished.alice.account_id}/quotas"
    superadmin.done(path, records_soft="5", records_hard=" 10 ")
    assert furnished.root.get(quotas).json["records"] == {"used": 3, "soft": 5, "hard": 10}
    assert 'name="records_hard" value="10"' in superadmin.get(path).text
    for value in ("many", "-1", "²", "9" * 400):
        refused = superadmin.send(path, records_hard=value)
        assert (refused.status_code, "aria-invalid" in refused.text) == (400, True)
    assert "quotas are saved" in superadmin.done(path)
    assert furnished.root.get(quotas).json["records"]["hard"] is None


@pytest.mark.parametrize(
    ("text", "stored", "shown"),
    [
        ("5 GiB", 5 * 1024**3, "5 GiB"),
        ("3tib", 3 * 1024**4, "3 TiB"),
        ("1536 MiB", 1536 * 1024**2, "1536 MiB"),
        ("1025", 1025, "1025"),
        ("2048", 2048, "2 KiB"),
        ("0", 0, "0"),
        ("5 GB", None, None),
        ("1.5 GiB", None, None),
        ("9999999999999999 TiB", None, None),
        ("5 GiB GiB", None, None),
    ],
)
def test_console_storage_quota_accepts_units(
    furnished: Cast, superadmin: Browser, text: str, stored: int | None, shown: str | None
) -> None:
    path = f"usage/{furnished.alice.account_id}"
    quotas = f"accounts/{furnished.alice.account_id}/quotas"
    if stored is None:
        refused = superadmin.send(path, row_bytes_hard=text)
        assert (refused.status_code, "such as 5 GiB." in refused.text) == (400, True)
        return
    superadmin.done(path, row_bytes_hard=text)
    assert furnished.root.get(quotas).json["row_bytes"]["hard"] == stored
    page = superadmin.get(path).text
    assert f'name="row_bytes_hard" value="{shown}"' in page
    superadmin.done(path, row_bytes_hard=shown)
    assert furnished.root.get(quotas).json["row_bytes"]["hard"] == stored
    assert superadmin.send(path, records_hard="5 GiB").status_code == 400


def test_console_quota_form_shows_own_and_default_limits(
    app: Flask, furnished: Cast, superadmin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"usage/{furnished.alice.account_id}"
    superadmin.done(path, mails_soft="5")
    limits = (("requests", 10_000), ("row_bytes", 5 * 1024**3), ("mails", 100))
    settings = replace(app.extensions["atrium.config"], quotas=limits)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    page = superadmin.get(path).text
    for name, value, hint in (
        ("requests_hard", "", "10,000 (service)"),
        ("row_bytes_hard", "", "5 GiB (service)"),
        ("records_hard", "", "no limit"),
        ("mails_soft", "5", "none"),
        ("mails_hard", "", "no limit"),
    ):
        assert f'name="{name}" value="{value}" placeholder="{hint}"' in page, name


@pytest.mark.parametrize(
    ("period", "first", "last"),
    [
        ("", "2026-02-15", "2026-03-16"),
        ("nonsense", "2026-02-15", "2026-03-16"),
        ("90", "2025-12-17", "2026-03-16"),
        ("month", "2026-03-01", "2026-03-16"),
        ("last_month", "2026-02-01", "2026-02-28"),
    ],
)
def test_console_usage_period_is_chosen_and_exported(
    app: Flask, cast: Cast, period: str, first: str, last: str
) -> None:
    with time_machine.travel("2026-03-16 12:00", tick=True):
        browser, path = Browser(app, cast.alice), f"usage/{cast.alice.account_id}"
        page = browser.get(f"{path}?period={period}").text
        chosen = period if period in ("90", "month", "last_month") else "30"
        assert f'href="/console/{path}/csv?period={chosen}"' in page
        assert f'{path}?period={chosen}" aria-current="true"' in page
        lines = browser.get(f"{path}/csv?period={period}").text.splitlines()
        assert (lines[1].split(",")[0], lines[-1].split(",")[0]) == (first, last)
