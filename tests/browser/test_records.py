"""A superadmin makes a collection, an admin enters records, finds one and deletes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NARROW, WIDE, WITHOUT_SCRIPTS_TOO, Visit
from tests.browser.test_console import sign_in
from tests.browser.test_people import fill, press
from tests.builders import OPEN, Cast, make_collection, make_record
from tests.console.furnished import BOOKS, LONG

FILE = {
    "name": "books.csv",
    "mimeType": "text/csv",
    "buffer": b"title,pages,lent\n" + b"The Dispossessed,387,true\n" * 600,
}


@pytest.fixture
def books(live_cast: Cast) -> Iterator[dict[str, str]]:
    """A collection with two records of acme; gone again afterwards."""
    made = make_collection(live_cast.root, "books", BOOKS)
    ids = {"id": made["id"], "acme": live_cast.alice.account_id}
    ids["first"] = make_record(live_cast.alice, "books", title="First")["id"]
    second = {"title": LONG, "before": ids["first"], "more": {"a": LONG}, "pages": 7}
    ids["second"] = make_record(live_cast.alice, "books", **second)["id"]
    yield ids
    assert live_cast.root.delete(f"collections/{made['id']}").status_code == 200


@WITHOUT_SCRIPTS_TOO
def test_console_collection_and_record_life_cycle(visit: Visit, live_cast: Cast) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    page.get_by_role("link", name="Collections", exact=True).click()
    press(visit, "New collection")
    fill(visit, collection_name="films", name_0="title")
    page.locator("[name=required_0]").check()
    press(visit, "Add a field")
    fill(visit, name_1="years")
    expect(page.locator("[name=min_1]")).to_be_hidden()
    page.locator("[name=type_1]").select_option("number")
    page.locator("#field-1").get_by_text("Default and limits").click()
    expect(page.locator("[name=min_1]")).to_be_visible()
    press(visit, "Add a field")
    fill(visit, name_2="sequel", collection_name="films")
    page.locator("[name=type_2]").select_option("reference")
    expect(page.locator("[name=default_2]")).to_be_hidden()
    page.locator("[name=name_2]").press("Enter")
    expect(page.locator("#collection_2-error")).to_contain_text("Choose the collection")
    page.locator("[name=collection_2]").select_option("films")
    press(visit, "Show plan")
    expect(page.get_by_role("region", name="What changes")).to_contain_text("sequel")
    visit.faults.clear()  # the refusal was meant
    press(visit, "Create collection")
    expect(page.get_by_role("status")).to_contain_text("films is created.")
    assert live_cast.root.put("collections/films/rules", OPEN).status_code == 200
    press(visit, "Sign out")
    sign_in(visit, live_cast.alice)
    page.get_by_role("link", name="Records", exact=True).click()
    page.get_by_role("link", name="films", exact=True).click()
    expect(page.get_by_text("No records yet.")).to_be_visible()
    press(visit, "New record")
    fill(visit, f_title="Alien", f_years="1979")
    page.get_by_role("button", name="Create record").dblclick()
    expect(page.get_by_role("heading", level=1)).to_have_text("Alien")
    page.get_by_role("link", name="films").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    press(visit, "New record")
    fill(visit, f_title="Aliens", f_years="1986")
    if page.get_by_role("combobox", name="sequel").count():
        page.get_by_role("combobox", name="sequel").fill("ali")
        page.get_by_role("option", name="Alien").click()
    else:
        page.locator("[name=find_sequel]").fill("ali")
        page.locator("[name=find_sequel]").press("Enter")
        press(visit, "Alien")
        expect(page.get_by_text("Now: Alien")).to_be_visible()
    expect(page.locator("[name=f_title]")).to_have_value("Aliens")
    page.locator("[name=f_years]").press("Enter")
    expect(page.locator(".alert[role=status]")).to_have_text("The record is created.")
    page.get_by_role("link", name="films").click()
    page.locator("[name=field_0]").select_option("years")
    page.locator("[name=op_0]").select_option("<")
    fill(visit, value_0="1980")
    page.get_by_role("button", name="Apply").first.click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="years").click()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("years")
    press(visit, "Clear")
    page.get_by_role("row", name="Aliens").get_by_role("rowheader").get_by_role("link").click()
    page.locator("summary", has_text="Delete").click()
    press(visit, "Delete the record")
    expect(page.get_by_role("status")).to_have_text("The record is deleted.")
    visit.check_quiet_and_at_home()
    made = live_cast.root.get("collections/films").json["id"]
    assert live_cast.root.delete(f"collections/{made}").status_code == 200


def test_record_list_on_phones_shows_first_three_values(
    visit: Visit, live_cast: Cast, books: dict[str, str]
) -> None:
    values = {"kind": "novel", "pages": 412, "lent": True, "contact": "x@books.example"}
    record = make_record(live_cast.alice, "books", title="Dune", **values)["id"]
    page, columns = visit.page, ("before", *values)  # `before` is empty
    sign_in(visit, live_cast.alice)
    query = "&".join(f"column={name}" for name in columns)
    page.goto(f"/console/records/{books['acme']}/books?{query}")
    cells = page.locator(f"[data-key='{record}'] td[data-label]:visible")
    visit.wear("light", WIDE)
    expect(cells).to_have_count(len(columns))
    visit.wear("light", NARROW)
    expect(cells).to_have_text(["novel", "412", "yes"])
    page.get_by_role("link", name="Edit Dune").click()
    expect(cells).to_have_count(len(columns))  # a form has all
    visit.check_fits()


def test_cell_is_edited_by_click_and_enter(
    visit: Visit, live_cast: Cast, books: dict[str, str]
) -> None:
    page, path = visit.page, f"/console/records/{books['acme']}/books"
    sign_in(visit, live_cast.alice)
    page.goto(f"{path}?column=pages&column=before")
    row = page.locator(f"[data-key='{books['first']}']")
    row.locator("[data-label=pages]").click()
    expect(page.locator("[name=f_pages]")).to_be_focused()
    page.keyboard.type("412")
    page.keyboard.press("Enter")
    expect(page.locator("[data-toast]")).to_have_text("The record is saved.")
    expect(row.locator("[data-label=pages]")).to_have_text("412")
    row.get_by_role("link", name="Edit").click()
    before = page.get_by_role("combobox", name="before")
    before.fill("firs")
    expect(page.get_by_role("option", name="First")).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("[name=f_before]")).to_have_value(books["first"])
    page.keyboard.press("Escape")
    expect(page.locator("[name=f_before]")).to_have_count(0)
    assert live_cast.alice.get(f"records/books/{books['first']}").json["pages"] == 412
    visit.check_quiet_and_at_home()


def test_reference_cell_click_lists_records_and_link_opens_record(
    visit: Visit, live_cast: Cast, books: dict[str, str]
) -> None:
    page, path = visit.page, f"/console/records/{books['acme']}/books"
    sign_in(visit, live_cast.alice)
    page.goto(f"{path}/{books['second']}")
    before, link = (
        page.get_by_role("combobox", name="before"),
        page.get_by_role("link", name="Open"),
    )
    expect(link).to_have_attribute("href", re.compile(books["first"]))
    before.click()
    expect(page.get_by_role("listbox").get_by_role("option")).to_have_count(2)
    page.get_by_role("option", name=LONG[:20]).click()
    expect(page.locator("[name=f_before]")).to_have_value(books["second"])
    expect(link).to_have_attribute("href", re.compile(f"{books['second']}$"))
    before.fill("")
    before.blur()
    expect(link).to_be_hidden()
    before.fill(books["first"])
    before.blur()
    link.click()
    page.wait_for_url(f"**{path}/{books['first']}")
    expect(page.get_by_role("heading", level=1)).to_have_text("First")
    visit.check_quiet_and_at_home()


def test_reference_options_stay_at_their_input_while_the_page_scrolls(
    visit: Visit, live_cast: Cast, books: dict[str, str]
) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    page.goto(f"/console/records/{books['acme']}/books/{books['second']}")
    before, options = page.get_by_role("combobox", name="before"), page.get_by_role("listbox")
    before.click()
    expect(options).to_be_visible()
    page.evaluate("document.body.style.paddingBottom = '200vh'")
    page.mouse.wheel(0, 60)
    page.wait_for_function("scrollY >= 60")
    page.evaluate("new Promise(requestAnimationFrame)")
    expect(options).to_be_visible()
    input_box, list_box = before.bounding_box(), options.bounding_box()
    assert input_box is not None
    assert list_box is not None
    assert abs(list_box["y"] - (input_box["y"] + input_box["height"])) < 2
    options.get_by_role("option").first.click()
    expect(options).to_be_hidden()


@WITHOUT_SCRIPTS_TOO
def test_record_bulk_edit_and_saved_view(
    visit: Visit, live_cast: Cast, books: dict[str, str]
) -> None:
    page, path = visit.page, f"/console/records/{books['acme']}/books"
    sign_in(visit, live_cast.alice)
    page.goto(path)
    every = page.get_by_label("Select all on this page")
    boxes = page.locator("[form=selection][name=id]")
    if every.is_visible():
        every.check()
    for box in boxes.all():
        box.check()
    page.get_by_label("Field to edit").select_option("kind")
    press(visit, "Edit")
    expect(page.get_by_role("heading", level=1)).to_have_text("Edit 2 records")
    page.get_by_label("kind").select_option("poem")
    press(visit, "Change 2 records")
    expect(page.locator("[data-toast]")).to_have_text("2 records are changed.")
    page.locator("[name=field_0]").select_option("kind")
    press(visit, "Apply")  # without scripts: which choices are there
    page.locator("select[name=value_0]").select_option("poem")
    press(visit, "Apply")
    expect(boxes).to_have_count(2)
    visit.faults.clear()  # without a value, the filter is refused
    page.locator("summary", has_text="Save view").click()
    fill(visit, name="Poems")
    press(visit, "Save view")
    expect(page.get_by_label("Saved views").get_by_text("Poems")).to_have_attribute(
        "aria-current", "page"
    )
    page.locator("summary", has_text="Delete view").click()
    press(visit, "Delete the view")
    expect(page.get_by_label("Saved views")).to_have_count(0)
    visit.check_quiet_and_at_home()


def test_record_filter_suggests_records_of_reference(
    visit: Visit, live_cast: Cast, books: dict[str, str]
) -> None:
    page, path = visit.page, f"/console/records/{books['acme']}/books"
    sign_in(visit, live_cast.alice)
    page.goto(path)
    page.locator("[name=field_0]").select_option("before")
    name = page.get_by_role("combobox", name="Name or id")
    name.fill("fir")
    expect(page.get_by_role("option", name="First")).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(name).to_have_value("First")
    expect(page.locator("[name=value_0]")).to_have_value(books["first"])
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator(f"[data-key='{books['second']}']")).to_be_visible()
    expect(name).to_have_value("First")
    # A text that is no choice is looked for as it is.
    page.locator("[name=op_0]").select_option("contains")
    visit.picture("suggest")
    name.fill("irst")
    expect(page.get_by_role("option", name="First")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("value_0=irst"))
    expect(page.locator("tbody tr")).to_have_count(1)
    visit.check_quiet_and_at_home()


def test_column_widths_are_set_by_pointer_and_keyboard_and_saved(
    visit: Visit, live_cast: Cast, books: dict[str, str]
) -> None:
    page, path = visit.page, f"/console/records/{books['acme']}/books"
    sign_in(visit, live_cast.alice)
    page.goto(f"{path}?column=pages&column=kind")
    handle = page.get_by_role("separator", name="Width of pages")
    head = page.get_by_role("columnheader", name="pages", exact=True)

    def width() -> int:
        return round(head.evaluate("head => head.getBoundingClientRect().width"))

    handle.focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(handle).to_have_attribute("aria-valuenow", str(width()))
    assert width() == 96
    box = handle.bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=3)
    page.mouse.up()
    assert width() == 196
    # Links, forms and the way back keep it; a reload, too.
    head.get_by_role("link").click()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("pages")
    assert width() == 196
    page.get_by_role("row", name="First").get_by_role("rowheader").get_by_role("link").click()
    page.get_by_role("link", name="books").click()
    handle.focus()
    page.keyboard.press("ArrowLeft")
    page.get_by_role("button", name="Apply").first.click()
    assert width() == 180
    page.locator("summary", has_text="Save view").click()
    fill(visit, name="Narrow")
    press(visit, "Save view")
    page.get_by_label("Saved views").get_by_text("All records").click()
    assert width() != 180
    page.get_by_label("Saved views").get_by_text("Narrow").click()
    assert width() == 180
    # All edges are one stop of the Tab key.
    stops = page.get_by_role("separator").and_(page.locator("[tabindex='0']"))
    expect(stops).to_have_count(1)
    stops.focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("separator").nth(1)).to_be_focused()
    expect(stops).to_have_count(1)
    handle.dblclick()
    expect(page).not_to_have_url(re.compile("width="))
    page.locator("summary", has_text="Delete view").click()
    visit.check_quiet_and_at_home()


def test_record_pages_are_accessible_and_fit(
    visit: Visit, live_cast: Cast, books: dict[str, str], look: Callable[[str], None]
) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    one, records = f"/console/collections/{books['id']}", f"/console/records/{books['acme']}"
    columns = "&".join(f"column={one['name']}" for one in BOOKS)
    columns += "&width=title:90&width=pages:60"
    paths = {
        "schema": f"{one}/schema",
        "list": f"{records}/books?{columns}&sort=pages",
        "filter": f"{records}/books?field_0=title&op_0=starts&value_0=F&field_1=pages&value_1=x",
        "import": f"{records}/books/import",
        "record": f"{records}/books/{books['second']}",
    }
    for name, path in paths.items():
        page.goto(path)
        if name == "import":
            page.set_input_files("[name=file]", FILE)
            press(visit, "Check")
            expect(page.get_by_role("status")).to_contain_text("All 600 records are valid")
        if name == "schema":
            press(visit, "Add a field")
            added = len(BOOKS)
            expect(page.locator(f"[name=name_{added}]")).to_be_in_viewport()
            fill(visit, **{f"name_{added}": "code"})
            page.locator(f"[name=unique_{added}]").check()
            press(visit, "Show plan")
        if name == "record":
            page.get_by_role("combobox", name="before").fill("f")
            expect(page.get_by_role("option", name="First")).to_be_in_viewport()
        look(name)


def test_collection_with_longest_name_fits_windows(
    visit: Visit, live_cast: Cast, look: Callable[[str], None]
) -> None:
    made = make_collection(live_cast.root, "m" * 56)
    sign_in(visit, live_cast.alice)
    visit.page.goto(f"/console/records/{live_cast.alice.account_id}/{made['name']}")
    look("longest-name")
    assert live_cast.root.delete(f"collections/{made['id']}").status_code == 200


def test_index_form_has_rows_of_inputs_with_scripts(
    visit: Visit, live_cast: Cast, books: dict[str, str]
) -> None:
    page = visit.page
    own = [{"fields": ["kind", "-pages"], "unique": False}]
    assert live_cast.root.patch(f"collections/{books['id']}", {"indexes": own}).status_code == 200
    sign_in(visit, live_cast.root)
    page.goto(f"/console/collections/{books['id']}/schema")
    first = page.get_by_role("group", name="Index", exact=True).nth(0)
    fields, orders = (first.get_by_label(name, exact=True) for name in ("Field", "Order"))
    expect(fields).to_have_count(3)  # the last one is for the next field
    expect(fields.nth(1)).to_have_value("pages")
    expect(orders.nth(1)).to_have_value("-")
    fields.nth(2).select_option("created_at")
    first.get_by_label("Unique in its account").check()
    press(visit, "Add an index")
    second = page.get_by_role("group", name="Index", exact=True).nth(1)
    expect(second.get_by_label("Field").first).to_be_focused()
    second.get_by_label("Field").first.select_option("title")
    second.get_by_label("Field").nth(1).select_option("lent")
    visit.wear("dark", NARROW)
    visit.picture("indexes")
    visit.check_fits()
    visit.check_nothing_scrolls_sideways()
    press(visit, "Show plan")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("status")).to_contain_text("are saved")
    stored = live_cast.root.get("collections/books").json["indexes"]
    assert stored == [
        {"fields": ["kind", "-pages", "created_at"], "unique": True},
        {"fields": ["title", "lent"], "unique": False},
    ]
    page.goto(f"/console/collections/{books['id']}/schema")
    for _ in stored:
        first.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("button", name="Add an index")).to_be_focused()
    expect(page.locator("[name=indexes]")).to_have_value("")
    visit.check_quiet_and_at_home()
