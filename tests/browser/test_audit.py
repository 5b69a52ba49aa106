"""The pages of the audit log and of signatures: in every window, for everybody, by keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.browser.conftest import Visit
from tests.browser.test_console import sign_in
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
    records = f"/console/records/{alice.account_id}"
    yield {
        "filtered": f"/console/audit?table_name=col_posts&record_id={post}",
        "signed": f"{records}/articles/new",
        "schema": f"/console/collections/{articles}/schema",
    }
    root.patch(f"collections/{articles}", {"options": {"require_signature": False}})


def test_the_pages_fit_and_are_accessible(
    visit: Visit, live_cast: Cast, pages: dict[str, str], look: Callable[[str], None]
) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    for name, address in pages.items():
        page.goto(address)
        look(name)
    page.goto("/console/audit/chains")
    page.get_by_role("button", name="Verify all").click()
    page.get_by_text("are intact").wait_for()
    look("verified")
    visit.check_quiet_and_at_home()
