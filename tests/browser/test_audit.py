"""The pages of the audit log and of signatures: in every window, for everybody, by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import Visit
from tests.browser.test_console import LOOKS, check_fits, sign_in
from tests.builders import Cast

pytestmark = pytest.mark.browser


@pytest.fixture
def pages(live_cast: Cast) -> Iterator[dict[str, str]]:
    """Addresses by what they show; one collection demands signatures meanwhile."""
    alice, root = live_cast.alice, live_cast.root
    articles = root.get("collections/articles").json["id"]
    root.patch(f"collections/{articles}", {"options": {"require_signature": True}})
    post = alice.get("records/posts").json["items"][0]["id"]
    alice.patch(f"records/posts/{post}", {"title": "another " * 20})
    newest = root.get("audit-logs?limit=1").json["items"][0]["id"]
    records = f"/console/records/{alice.account_id}"
    yield {
        "log": "/console/audit",
        "filtered": f"/console/audit?table_name=col_posts&record_id={post}",
        "entry": f"/console/audit/{newest}",
        "chains": "/console/audit/chains",
        "history": f"{records}/posts/{post}/history",
        "signed": f"{records}/articles/new",
        "schema": f"/console/collections/{articles}/schema",
    }
    root.patch(f"collections/{articles}", {"options": {"require_signature": False}})


def test_the_pages_fit_and_are_accessible(
    visit: Visit, live_cast: Cast, pages: dict[str, str], axe: str, tmp_path: Path
) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    for name, address in pages.items():
        page.goto(address)
        looked_at(visit, name, axe, tmp_path)
    page.goto(pages["chains"])
    page.get_by_role("button", name="Verify all").click()
    page.get_by_text("as they were written").wait_for()
    looked_at(visit, "verified", axe, tmp_path)
    visit.check_quiet_and_at_home()


def looked_at(visit: Visit, name: str, axe: str, folder: Path) -> None:
    """The page as it stands, in every look."""
    for scheme, size in LOOKS:
        visit.page.set_viewport_size(size)  # type: ignore[arg-type]
        visit.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        visit.page.screenshot(path=folder / f"{name}-{scheme}-{size['width']}.png", full_page=True)
        check_fits(visit)
        if (scheme, size) in (LOOKS[0], LOOKS[-1]):
            visit.check_accessible(axe)
