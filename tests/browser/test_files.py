"""An admin looks at files of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.test_console import sign_in
from tests.builders import Cast, make_collection, make_record
from tests.console.furnished import LONG
from tests.files.test_files import image, upload

pytestmark = pytest.mark.browser

SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "cover", "type": "file", "options": {"mime_types": ["image/*"]}},
    {"name": "papers", "type": "file", "options": {"max_files": 9}},
]
TEXT = b"<script>alert(1)</script>\n" * 4


@pytest.fixture
def albums(live_cast: Cast) -> Iterator[str]:
    """The records of a collection with files, one of them; gone again afterwards."""
    made, alice = make_collection(live_cast.root, "albums", SCHEMA), live_cast.alice
    sent = [(TEXT, f"{LONG}.txt"), (image(300, 900), "tall.png"), (b"PK\x03\x04", "a.zip")]
    papers = [upload(alice, *one)["id"] for one in [*sent, (image(900, 300), "wide.png")]]
    cover = upload(alice, image(640, 480), "cover.png")["id"]
    make_record(alice, "albums", title="Blue", cover=cover, papers=papers)
    make_record(alice, "albums", title="Hejira")
    yield f"/console/records/{alice.account_id}/albums"
    assert live_cast.root.delete(f"collections/{made['id']}").status_code == 200


def test_tables_show_thumbnails(
    visit: Visit, live_cast: Cast, albums: str, look: Callable[[str], None]
) -> None:
    sign_in(visit, live_cast.alice)
    visit.page.goto(albums)
    thumbnail = visit.page.get_by_role("img", name="cover.png")
    expect(thumbnail).to_be_visible()
    expect(thumbnail).to_have_js_property("naturalWidth", 80)
    box = visit.page.get_by_role("img", name="tall.png").bounding_box()
    assert box is not None
    assert (box["width"], box["height"]) == (40, 40)
    look("albums")
    visit.check_quiet_and_at_home()
