"""An admin drops files on a record's form, and looks at those of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.browser.conftest import Visit
from tests.browser.test_console import sign_in
from tests.browser.test_people import fill, press
from tests.builders import Cast, make_collection, make_record
from tests.console.furnished import LONG
from tests.files.test_files import image, upload

SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "cover", "type": "file", "options": {"mime_types": ["image/*"]}},
    {"name": "papers", "type": "file", "options": {"max_files": 9, "max_bytes": 20 * 2**20}},
]
TEXT = b"<script>alert(1)</script>\n" * 4


@pytest.fixture
def albums(live_cast: Cast) -> Iterator[str]:
    """The records of a collection with files, one of them; gone again afterwards."""
    made, alice = make_collection(live_cast.root, "albums", SCHEMA), live_cast.alice
    sent = [(TEXT, f"{LONG}.txt"), (image(300, 900), "tall.png"), (b"PK\x03\x04", "a.zip")]
    sent += [(image(900, 300), "wide.png"), (image(format="PDF"), "a.pdf")]
    papers = [upload(alice, *one)["id"] for one in sent]
    cover = upload(alice, image(640, 480), "cover.png")["id"]
    make_record(alice, "albums", title="Blue", cover=cover, papers=papers)
    make_record(alice, "albums", title="Hejira")
    yield f"/console/records/{alice.account_id}/albums"
    assert live_cast.root.delete(f"collections/{made['id']}").status_code == 200


def test_record_table_shows_file_thumbnails(
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


def drop(field: Locator, *files: tuple[str, int]) -> None:
    """Drop files with a name and a size on a field."""
    make = """files => {
      const transfer = new DataTransfer();
      for (const [name, size] of files) transfer.items.add(new File(["x".repeat(size)], name));
      return transfer;
    }"""
    transfer = field.page.evaluate_handle(make, files)
    for event in ("dragover", "drop"):
        field.dispatch_event(event, {"dataTransfer": transfer})


def test_file_field_accepts_dropped_files(
    visit: Visit, live_cast: Cast, albums: str, look: Callable[[str], None]
) -> None:
    page, held = visit.page, list[Route]()
    sign_in(visit, live_cast.alice)
    page.goto(f"{albums}/new")
    fill(visit, f_title="Court and Spark")
    papers, cover = page.locator("#f_papers"), page.locator("#f_cover")
    page.route("**/files?*", lambda route: held.append(route))
    drop(papers, ("large.bin", 11 * 2**20), ("<b>.txt", 10))  # larger than a form may be
    drop(cover, ("large.png", 10 * 2**20 + 1))
    expect(cover.get_by_role("status")).to_contain_text("large.png is too large")
    drop(cover, ("notes.txt", 10), ("more.txt", 10))
    expect(cover.get_by_role("status")).to_have_text("At most 1 file.")
    uploading = page.get_by_role("progressbar", name="Upload of large.bin")
    expect(uploading).to_have_js_property("value", 0)
    drop(papers, ("mistake.txt", 10))
    papers.get_by_role("button", name="Cancel the upload of mistake.txt").click()
    look("uploading")
    press(visit, "Create record")
    expect(papers.get_by_role("status")).to_contain_text("An upload is still running.")
    bandwidth = {"offline": False, "latency": 0, "downloadThroughput": -1}
    network = page.context.new_cdp_session(page)
    conditions = {**bandwidth, "uploadThroughput": 8 * 2**20}
    network.send("Network.emulateNetworkConditions", conditions)
    held[0].continue_()
    page.unroute("**/files?*")
    bar = uploading.element_handle()
    page.wait_for_function("bar => 0 < bar.value && bar.value < 1", arg=bar)
    expect(
        cover.get_by_text("notes.txt: This is text/plain; the field takes image/*.")
    ).to_be_visible()
    expect(papers.get_by_role("link")).to_have_text(["large.bin", "<b>.txt"])
    expect(papers.get_by_text("still running")).to_have_count(0)
    choose = papers.get_by_label("papers: choose files")
    choose.set_input_files([{"name": "late.txt", "mimeType": "text/plain", "buffer": b"late"}])
    expect(papers.get_by_role("link")).to_have_count(3)
    papers.get_by_role("button", name="Remove <b>.txt").click()
    expect(choose).to_be_focused()
    look("uploaded")
    press(visit, "Create record")
    expect(page.locator("[data-toast]")).to_have_text("The record is created.")
    expect(papers.get_by_role("link")).to_have_text(["large.bin", "late.txt"])
    for name in ("one.png", "two.png"):  # the later one replaces the other
        sent = {"name": name, "mimeType": "image/png", "buffer": image()}
        cover.get_by_label("cover: choose a file").set_input_files([sent])
    expect(cover.get_by_role("link")).to_have_text(["two.png"])
    expect(cover.locator(".thumb")).to_have_js_property("naturalWidth", 48)  # of 64, cut
    page.context.clear_cookies(name="atrium_console")
    drop(papers, ("unseen.txt", 10))
    expect(papers.get_by_text("unseen.txt: Signed out.")).to_be_visible()
    visit.check_quiet_and_at_home()


def test_file_previews_open_on_the_page(
    visit: Visit, live_cast: Cast, albums: str, look: Callable[[str], None]
) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    page.goto(albums)
    page.get_by_role("row", name="Blue").get_by_role("rowheader").get_by_role("link").click()
    expect(page.get_by_text("Preview of")).to_have_count(5)
    assert not any("1024x1024" in url for url in visit.requested)
    # Browsers differ in how they show PDFs; what counts is that the policy of the page lets them.
    address = page.get_by_role("link", name="a.pdf").evaluate("link => link.href")
    page.route(address, lambda route: route.fulfill(body="shown", content_type="text/plain"))
    for name in (f"{LONG}.txt", "wide.png", "a.pdf"):
        page.get_by_text(f"Preview of {name}").click()
    expect(page.get_by_role("region", name=f"{LONG}.txt")).to_have_text(TEXT.decode())
    expect(page.get_by_role("img", name="wide.png")).to_have_js_property("naturalWidth", 900)
    expect(page.frame_locator("iframe[title='a.pdf']").get_by_text("shown")).to_be_visible()
    look("previews")
    visit.check_quiet_and_at_home()
