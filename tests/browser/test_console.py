"""A journey through the console in a real browser, under its own Content-Security-Policy."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import expect

from tests.browser.conftest import NARROW, WIDE, WITHOUT_SCRIPTS_TOO, Visit
from tests.builders import PASSWORD, Caller, Cast


def fill_in(visit: Visit, caller: Caller, password: str = PASSWORD) -> None:
    visit.page.get_by_label("Account").fill(caller.slug)
    visit.page.get_by_label("Email").fill(caller.email)
    visit.page.get_by_label("Password").fill(password)
    visit.page.get_by_role("button", name="Sign in").click()


def sign_in(visit: Visit, caller: Caller) -> None:
    visit.page.goto("/console")
    fill_in(visit, caller)
    visit.page.wait_for_url("**/console")


def sign_out(visit: Visit) -> None:
    """Press the button in one's own menu."""
    visit.page.get_by_role("button", name="your menu").click()
    visit.page.get_by_role("button", name="Sign out").click()
    visit.page.wait_for_url("**/console/sign-in")


def figure(visit: Visit, name: str) -> str:
    box = visit.page.locator(".figures article", has_text=name)
    return box.locator("strong").inner_text()


def test_console_sign_in_home_and_sign_out(visit: Visit, live_cast: Cast) -> None:
    sign_in(visit, live_cast.alice)
    expect(visit.page).to_have_title("Home · Atrium")
    expect(visit.page.get_by_role("heading", level=1)).to_have_text("Acme")
    people = live_cast.alice.get("account/users").json["total"]  # other tests leave some
    assert (figure(visit, "People"), figure(visit, "Collections")) == (str(people), "2")
    visit.page.get_by_role("link", name="API", exact=True).click()
    visit.page.wait_for_url("**/docs", wait_until="commit")
    visit.page.go_back()
    sign_out(visit)
    visit.page.goto("/console")
    assert "/console/sign-in" in visit.page.url
    visit.check_quiet_and_at_home()


@WITHOUT_SCRIPTS_TOO
def test_console_home_of_superadmin_shows_instance(visit: Visit, live_cast: Cast) -> None:
    sign_in(visit, live_cast.root)
    expect(visit.page.get_by_role("heading", level=1)).to_have_text("Instance")
    users = live_cast.root.get("users").json["total"]  # other tests leave some
    collections = live_cast.root.get("collections").json["items"]
    records = sum(one["record_count"] for one in collections)
    shown = [figure(visit, name) for name in ("Accounts", "Users", "Records")]
    assert shown == ["2", str(users), str(records)]
    rows = visit.page.locator("section", has_text="Collections").get_by_role("listitem")
    for one in collections:
        expect(rows.filter(has_text=f"{one['name']} ").first).to_contain_text(
            f"{one['record_count']} record"
        )
    named = {one["name"]: one["record_count"] for one in collections}
    assert (named["articles"], named["posts"] >= 3) == (0, True)
    axes = visit.page.locator(".chart line:not(.top)").all()
    baselines = {round(one.bounding_box()["y"]) for one in axes}
    assert len(baselines) == 1  # however many lines their captions have
    visit.check_quiet_and_at_home()


@WITHOUT_SCRIPTS_TOO
def test_console_viewer_creates_key_and_sees_admin_hint(visit: Visit, live_cast: Cast) -> None:
    page = visit.page
    sign_in(visit, live_cast.bob)
    expect(page.get_by_text("are managed by the admins of Acme")).to_be_visible()
    page.get_by_role("link", name="API keys").click()
    expect(page.get_by_role("link", name="New key")).to_have_count(0)  # offered to admins only
    page.goto("/console/keys/new")
    page.get_by_label("Name").fill("of bob")
    page.get_by_role("button", name="Create key").click()
    expect(page.get_by_label("of bob")).to_have_value(re.compile("svc_sk_"))
    page.goto("/console/search")
    page.get_by_role("main").get_by_role("searchbox").fill("of bob")
    page.get_by_role("main").get_by_role("button", name="Search").click()
    expect(page.get_by_role("region", name="API keys").get_by_role("link").first).to_be_visible()
    page.goto("/console/team")
    expect(page.get_by_text("This page is for admins")).to_be_visible()
    visit.faults.clear()  # the refusal was meant
    visit.check_quiet_and_at_home()


def test_console_wrong_password_keeps_other_inputs(visit: Visit, live_cast: Cast) -> None:
    visit.page.goto("/console")
    fill_in(visit, live_cast.alice, "Wrong-horse-1")
    expect(visit.page.get_by_role("alert")).to_contain_text("Wrong account")
    expect(visit.page.get_by_label("Account")).to_have_value("acme")
    expect(visit.page.get_by_label("Password")).to_have_value("")
    fill_in(visit, live_cast.alice)
    visit.page.wait_for_url("**/console")


def test_console_forms_work_by_keyboard_alone(visit: Visit, live_cast: Cast) -> None:
    visit.page.goto("/welcome/forgot-password")
    visit.page.keyboard.press("Tab")
    expect(visit.page.get_by_text("Skip to the content")).to_be_in_viewport()
    visit.page.goto("/console/sign-in")
    expect(visit.page.get_by_label("Account")).to_be_focused()
    for text in ("acme", live_cast.alice.email, PASSWORD):
        visit.page.keyboard.type(text)
        visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**/console")
    visit.check_quiet_and_at_home()


def test_console_pages_fit_windows_in_light_and_dark(
    visit: Visit, live_cast: Cast, look: Callable[[str], None]
) -> None:
    page = visit.page
    page.goto("/console/sign-in")
    fill_in(visit, live_cast.root, "Wrong-horse-1")
    page.get_by_role("alert").wait_for()
    look("wrong")
    visit.wear("light", NARROW)
    expect(page.get_by_role("button", name="Sign in")).to_be_in_viewport(ratio=1)
    for caller in (live_cast.root, live_cast.alice):
        sign_in(visit, caller)
        if caller is live_cast.root:  # test_every_page.py looks at an admin's
            look("home-system")
        backgrounds = set()
        for scheme in ("light", "dark"):
            visit.wear(scheme, WIDE)
            backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(backgrounds) == 2
        sign_out(visit)


def test_command_palette_opens_pages_and_search_results(visit: Visit, live_cast: Cast) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    page.keyboard.press("Control+k")
    box = page.get_by_role("combobox", name="Search, or go to a page")
    expect(box).to_be_focused()
    page.keyboard.type("webh")
    expect(page.get_by_role("option", name="Webhooks").first).to_have_attribute(
        "aria-selected", "true"
    )
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/webhooks/**")
    page.get_by_role("link", name="Search").click()
    box.fill(live_cast.bob.email)
    page.get_by_role("option", name=live_cast.bob.email).click()
    page.wait_for_url("**/console/team/users/*")
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()
    visit.check_quiet_and_at_home()


def test_keyboard_shortcuts_navigate_unless_disabled(visit: Visit, live_cast: Cast) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    page.keyboard.type("gt")
    page.wait_for_url("**/console/team")
    page.keyboard.type("n")
    page.wait_for_url("**/team/invite")
    page.get_by_label("Email").type("gt?n")  # while one types, they are letters
    expect(page.get_by_label("Email")).to_have_value("gt?n")
    page.goto("/console")
    page.keyboard.type("?")
    help = page.get_by_role("dialog", name="Keyboard shortcuts")
    help.get_by_label("Shortcuts of single letters").uncheck()
    help.get_by_role("button", name="Close").click()
    page.reload()
    page.keyboard.type("gt?")
    expect(help).to_be_hidden()
    assert page.url.endswith("/console")


@WITHOUT_SCRIPTS_TOO
def test_console_theme_choice_persists(visit: Visit, live_cast: Cast) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="your menu").click()
    page.get_by_role("button", name="Dark").click()
    page.goto("/console/team")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.get_by_role("button", name="your menu").click()
    expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="System").click()
    page.goto("/console/team")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light


def test_console_menu_and_header_stay_while_scrolling(visit: Visit, live_cast: Cast) -> None:
    page = visit.page
    page.set_viewport_size({"width": 1280, "height": 400})
    sign_in(visit, live_cast.alice)
    page.goto("/console/profile")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert page.evaluate("scrollY") > 300
    for part in (".sidebar", ".topbar"):
        top = page.locator(part).evaluate("one => one.getBoundingClientRect().top")
        assert abs(top) < 1, part


@WITHOUT_SCRIPTS_TOO
def test_console_menu_is_a_drawer_on_phones(visit: Visit, live_cast: Cast) -> None:
    page = visit.page
    visit.wear("light", NARROW)
    sign_in(visit, live_cast.alice)
    link = page.get_by_role("link", name="Groups", exact=True)
    expect(link).to_be_hidden()
    page.get_by_role("button", name="Menu", exact=True).click()
    link.click()
    page.wait_for_url("**/console/groups")
    expect(link).to_be_hidden()


@WITHOUT_SCRIPTS_TOO
def test_console_filters_fold_into_a_sheet_on_phones(visit: Visit, live_cast: Cast) -> None:
    page = visit.page
    sign_in(visit, live_cast.alice)
    page.set_viewport_size(NARROW)
    page.goto(f"/console/records/{live_cast.alice.account_id}/posts")
    expect(page.locator("[name=value_0]")).to_be_hidden()
    page.get_by_role("button", name="Filters").click()
    page.locator("[name=field_0]").select_option("title")
    page.locator("[name=value_0]").fill("two")
    page.get_by_role("button", name="Apply").first.click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("button", name="Filters")).to_have_text("Filters 1")
    page.goto(f"/console/webhooks/{live_cast.alice.account_id}/deliveries?status=failed")
    page.get_by_role("button", name="Filters 1").click()
    expect(page.get_by_label("State")).to_have_value("failed")
    # What is wrong is in sight.
    page.goto(f"/console/webhooks/{live_cast.alice.account_id}/deliveries?from_date=never")
    expect(page.locator("[aria-invalid=true]")).to_be_visible()
    expect(page.get_by_role("button", name="Filters")).to_have_count(0)
    visit.check_quiet_and_at_home()


@WITHOUT_SCRIPTS_TOO
def test_console_account_switch_of_superadmin_persists_across_areas(
    visit: Visit, live_cast: Cast
) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    page.get_by_role("button", name="All accounts. Switch").click()
    page.get_by_placeholder("Find an account").fill("acm")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Acme").click()
    for name in ("Webhooks", "Team", "Records"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("button", name="Account: Acme. Switch")).to_be_visible()
        assert live_cast.alice.account_id in page.url
    visit.check_quiet_and_at_home()


CONTRASTS = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = color => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = color => {
    const [r, g, b] = color.map(part => part / 255)
      .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let at = element.parentElement; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return rgb("Canvas");
  };
  const controls = "input:not([type=hidden]), select, textarea, .editor, .btn:not(:disabled)";
  return [...document.querySelectorAll(controls)].filter(one => one.checkVisibility()).map(one => {
    const style = getComputedStyle(one), back = light(behind(one));
    const edges = [style.borderTopColor, style.backgroundColor].map(rgb)
      .filter(one => one[3] > 200);
    const ratios = edges.map(light).map(edge =>
      (Math.max(edge, back) + 0.05) / (Math.min(edge, back) + 0.05));
    return [Math.max(...ratios), one.outerHTML.slice(0, 80)];
  });
}"""


def check_contrasts(visit: Visit) -> None:
    for scheme in ("light", "dark"):
        visit.wear(scheme, WIDE)
        found = visit.page.evaluate(CONTRASTS)
        assert len(found) > 3
        assert [one for one in found if one[0] < 3] == [], (visit.page.url, scheme)


def test_console_controls_have_contrast_of_3_to_1(visit: Visit, live_cast: Cast) -> None:
    """By 3:1, as WCAG 1.4.11 asks for."""
    page, account = visit.page, live_cast.alice.account_id
    page.goto("/console/sign-in")
    check_contrasts(visit)
    sign_in(visit, live_cast.alice)
    place, settings = f"records/{account}/posts", f"settings/{account}/sign-in"
    for path in ("profile", "keys/new", "team/invite", place, f"{place}/new", settings):
        page.goto(f"/console/{path}")
        check_contrasts(visit)
    page.goto(f"/console/workflows/{account}/workflow/new")
    page.get_by_label("Started by").select_option("event")
    page.get_by_text("Steps as JSON").click()
    expect(page.locator(".editor")).to_have_count(2)
    check_contrasts(visit)
    sign_out(visit)
    sign_in(visit, live_cast.root)
    page.goto(f"/console/collections/{live_cast.root.get('collections/posts').json['id']}/rules")
    page.locator("[name=view_choice]").select_option("expression")
    expect(page.locator(".editor:visible")).to_have_count(1)
    check_contrasts(visit)


def test_console_confirmation_dialog_closes_without_action(visit: Visit, live_cast: Cast) -> None:
    page = visit.page
    group = live_cast.alice.post("groups", {"name": "questioned"}).json["id"]
    sign_in(visit, live_cast.alice)
    page.goto(f"/console/groups/{group}")
    asks, sure = page.get_by_text("Delete…"), page.get_by_role("button", name="Delete the group")
    place = page.get_by_role("heading", name="Members").bounding_box()
    asks.click()
    expect(sure).to_be_visible()
    assert page.get_by_role("heading", name="Members").bounding_box() == place
    page.keyboard.press("Escape")
    expect(sure).to_be_hidden()
    expect(asks).to_be_focused()
    page.keyboard.press("Enter")
    expect(sure).to_be_visible()
    page.get_by_role("heading", name="questioned").click()
    expect(sure).to_be_hidden()
    page.keyboard.press("Tab")
    asks.click()
    sure.click()
    page.wait_for_url("**/console/groups")
    assert live_cast.alice.get(f"groups/{group}").status_code == 404


def test_schema_form_fields_are_reordered_by_dragging(visit: Visit, live_cast: Cast) -> None:
    page = visit.page
    sign_in(visit, live_cast.root)
    page.set_viewport_size({"width": 1280, "height": 1600})
    page.goto("/console/collections/new")
    rows, handles = page.locator("[data-row]"), page.locator(".handle")
    for number in (2, 3):
        page.get_by_role("button", name="Add a field").click()
        expect(rows).to_have_count(number)
    page.wait_for_load_state()  # the script is there, too
    handles.nth(2).hover()  # waits until the page has scrolled to the new field
    page.mouse.down()
    expect(page.locator(".dragged")).to_have_count(1)
    first = handles.nth(0).bounding_box()
    assert first
    page.mouse.move(first["x"] + 5, first["y"] + 2, steps=5)
    page.mouse.up()
    expect(rows.first).to_have_attribute("data-row", "2")
    page.mouse.move(first["x"] + 5, first["y"] + 300)  # the pointer is free again
    page.get_by_role("button", name="Show plan").click()
    expect(page.get_by_role("alert")).to_be_visible()
    sent = [row.get_attribute("data-row") for row in rows.all()]
    assert sent[:3] == ["2", "0", "1"]
