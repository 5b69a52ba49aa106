"""The two documentation pages in a real browser, under their own Content-Security-Policy."""

import pytest

from tests.browser.conftest import Visit

PATHS = 12


def open_swagger(visit: Visit) -> None:
    visit.page.goto("/docs")
    visit.page.locator(".opblock-tag").first.click()
    visit.page.locator(".opblock-summary").first.wait_for()


def open_redoc(visit: Visit) -> None:
    visit.page.goto("/redoc")
    # The menu's footer comes last, and with it the logo that must not be asked for.
    visit.page.get_by_text("API docs by Redocly").wait_for()


def description(visit: Visit) -> dict:
    return visit.page.request.get("/openapi.json").json()


def first_summary(visit: Visit, tag: str | None = None) -> str:
    return next(one["summary"] for one in operations(visit, tag))


def check_title_and_operations(visit: Visit, tag: str | None = None) -> None:
    assert description(visit)["info"]["title"] in visit.page.locator("h1, h2").first.inner_text()
    visit.page.get_by_text(first_summary(visit, tag)).locator("visible=true").first.wait_for()


def check_policy(visit: Visit) -> None:
    """It allows neither inline code nor eval."""
    policy = visit.page.request.get(visit.page.url).headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'; script-src 'self';" in policy


@pytest.fixture(
    autouse=True,
    params=["short", pytest.param("whole", marks=pytest.mark.slow)],
    ids=["", "every-operation"],
)
def shortened_description(visit: Visit, request: pytest.FixtureRequest) -> None:
    """Serve the first paths only, as all of them take seconds to draw."""
    if request.param == "short" and "by_tag" not in request.node.name:
        short = description(visit)
        short["paths"] = dict(list(short["paths"].items())[:PATHS])
        visit.page.route("**/openapi.json", lambda route: route.fulfill(json=short))


def test_swagger_page_and_forms_work_under_csp(visit):
    open_swagger(visit)
    visit.check_quiet_and_at_home()
    check_title_and_operations(visit)
    check_policy(visit)
    visit.page.locator(".opblock-summary-control").first.click()
    visit.page.locator(".btn.execute").first.wait_for()
    visit.check_quiet_and_at_home()


def test_swagger_page_does_not_store_credential(visit):
    open_swagger(visit)
    visit.page.locator(".btn.authorize").click()
    visit.page.locator(".auth-container input").first.fill("a-secret")
    visit.page.locator(".auth-container .btn.authorize").first.click()
    visit.page.locator(".auth-container").get_by_text("Authorized").first.wait_for()
    kept = visit.page.evaluate("[{...localStorage}, {...sessionStorage}, document.cookie]")
    assert "a-secret" not in str(kept)
    visit.check_quiet_and_at_home()


def test_swagger_operation_by_tag_shows_what_it_refers_to(visit):
    visit.page.goto("/docs")
    visit.page.locator("#operations-tag-Records").click()
    visit.page.locator(".opblock-summary-control").first.click()
    operation = visit.page.locator(".opblock.is-open")
    operation.get_by_text("X-Account-ID").wait_for()  # of all operations of the path
    operation.get_by_text("next_cursor").first.wait_for()  # of the schema of the response
    visit.check_quiet_and_at_home()


def test_redoc_page_and_search_work_under_csp(visit):
    open_redoc(visit)
    visit.check_quiet_and_at_home()
    choice = visit.page.locator("#tag")  # hidden where all operations are shown
    tag = choice.input_value() if choice.is_visible() else None
    check_title_and_operations(visit, tag)
    check_policy(visit)
    visit.page.get_by_placeholder("Search").fill(first_summary(visit, tag))
    visit.page.locator("[data-role='search:results'] [role=menuitem]").first.wait_for()
    visit.check_quiet_and_at_home()


def test_redoc_shows_the_whole_description_by_tag(visit):
    visit.page.goto("/redoc")
    visit.page.locator("#redoc h2").first.wait_for()
    assert visit.page.locator("#tag").input_value() == "Records"
    visit.page.locator("#tag").select_option("Webhooks")
    visit.page.wait_for_url("**/redoc?tag=Webhooks")
    visit.page.locator("#redoc").get_by_role("heading", name="Webhooks").first.wait_for()
    shown = {one["summary"] for one in operations(visit, "Webhooks")}
    text = visit.page.locator("#redoc").inner_text()
    assert all(summary in text for summary in shown)
    visit.check_quiet_and_at_home()


def operations(visit: Visit, tag: str | None = None) -> list[dict]:
    """The operations, or those of a tag."""
    items = description(visit)["paths"].values()
    verbs = (one for item in items for one in item.values() if isinstance(one, dict))
    return [one for one in verbs if tag is None or tag in one.get("tags", ())]
