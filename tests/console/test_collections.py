"""The console's pages of collections: their fields, and the rules editor with its preview."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from flask import Flask

from app.console.collections.rules_form import LABELS, RULE_BY_CHOICE
from app.rules.functions import CALLERS, SPECIAL
from app.rules.functions import PLAIN as FUNCTIONS
from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import HOSTILE, Browser, alert, asks_to_sign_in, beside

NONE = "019a9f00-0000-7000-8000-00000000dead"
OPERATIONS = ("list", "view", "create", "update", "delete")
SCHEMA = [
    {"name": "title", "type": "text", "required": True},
    {"name": "n", "type": "number", "unique": True},
    {"name": "email", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "up", "type": "reference", "collection": "posts"},
    {"name": "loud", "type": "computed", "return_type": "text", "expression": "upper(title)"},
]
OWN = "@owns_record() || @has_role(editor)"


@pytest.fixture
def posts(cast: Cast) -> str:
    """The id of a collection whose five rules differ, with bob's record and alice's."""
    rules = {"list_rule": None, "view_rule": "", "create_rule": "true", "update_rule": OWN}
    made = make_collection(cast.root, "posts", SCHEMA, **rules)
    assert cast.root.put("collections/posts/rules", {"list_fields": ["title"]}).status_code == 200
    for owner, n in ((cast.bob, 1), (cast.alice, 2)):
        make_record(owner, title="of", n=n)
    return str(made["id"])


def form(**changes: Any) -> dict[str, Any]:
    """The editor's form as the collection's page shows it."""
    shown = {f"{one}_which": "all" for one in OPERATIONS[:4]}
    shown |= {f"{one}_choice": "signed_in" for one in OPERATIONS} | {"version": "2"}
    shown |= {"list_choice": "closed", "view_choice": "everyone", "update_choice": "expression"}
    shown |= {"list_which": "some", "list_fields": ["title"], "update_rule": OWN}
    return {**shown, **changes}


def rules_of(root: Caller) -> dict[str, Any]:
    found: dict[str, Any] = root.get("collections/posts/rules").json
    return found


def chosen(page: str) -> set[tuple[str, str]]:
    """The names and values of what is checked or selected on a page."""
    found = set(re.findall(r'name="(\w+)" value="(\w+)" checked', page))
    for name, options in re.findall(r'<select[^>]*name="(\w+)"(.*?)</select>', page, re.DOTALL):
        found |= {(name, value) for value in re.findall(r'value="(\w+)" selected', options)}
    return found


def text_in(page: str, name: str) -> str:
    """What stands in a text of several lines."""
    found = re.search(rf'<textarea id="{name}".*?>\n(.*?)</textarea>', page, re.DOTALL)
    assert found
    return html.unescape(found[1])


def marks(page: str) -> list[str]:
    """What is marked on a page."""
    return [html.unescape(one) for one in re.findall(r"<mark>(.*?)</mark>", page)]


def rows(page: str, caption: str) -> list[list[str]]:
    """The cells of a table, row by row."""
    found = re.search(rf'aria-label="{caption}".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    if not found:
        return []
    cells = r"<t[hd][^>]*>(.*?)</t[hd]>"
    lines = [re.findall(cells, one, re.DOTALL) for one in found[1].split("</tr>")[:-1]]
    return [[html.unescape(re.sub(r"<[^>]*>", " ", one)).strip() for one in row] for row in lines]


def paths(collection: str) -> tuple[list[str], list[str]]:
    """What a GET opens, and what a POST goes to."""
    one = f"collections/{collection}"
    opened = ["collections", one, f"{one}/rules", f"{one}/explain"]
    sent = [f"{one}/rules", f"{one}/rules/preview", f"{one}/rules/view/check", f"{one}/explain"]
    return opened, sent


def test_console_collections_require_superadmin(app: Flask, cast: Cast, posts: str) -> None:
    opened, sent = paths(posts)
    before = rules_of(cast.root)
    for caller, status in ((cast.bob, 403), (cast.alice, 403), (cast.root, 200)):
        browser = Browser(app, caller)
        for path in opened:
            assert browser.get(path).status_code == status, path
        if status == 403:
            for path in sent:
                answer = browser.send(path, **form(list_choice="everyone"))
                assert (answer.status_code, "owns_record" in answer.text) == (403, False)
            assert "/console/collections" not in browser.client.get("/console").text
    assert rules_of(cast.root) == before


def test_console_rules_form_without_session_or_csrf_token_is_refused(
    app: Flask, cast: Cast, superadmin: Browser, posts: str
) -> None:
    before, nobody = rules_of(cast.root), Browser(app)
    for path in paths(posts)[1]:
        answer = nobody.send(path, **form(list_choice="everyone"))
        assert asks_to_sign_in(answer)
        answer = superadmin.client.post(f"/console/{path}", data=form(list_choice="everyone"))
        assert (answer.status_code, "has expired" in answer.text) == (400, True)
    assert rules_of(cast.root) == before


def test_console_collection_with_unknown_id_is_404(superadmin: Browser, posts: str) -> None:
    for reference in (NONE, "1", "posts"):
        opened, sent = paths(reference)
        assert [superadmin.get(path).status_code for path in opened[1:]] == [404] * 3
        assert [superadmin.send(path, **form()).status_code for path in sent] == [404] * 4
    assert superadmin.send(f"collections/{posts}/rules/drop/check").status_code == 404


def test_console_collection_list_and_search(cast: Cast, superadmin: Browser, posts: str) -> None:
    make_collection(cast.root, "articles")
    listed = [row[:3] for row in rows(superadmin.get("collections").text, "Collections")]
    assert listed == [["articles", "1", "0"], ["posts", "5", "2"]]
    found = rows(superadmin.get("collections?search=OST").text, "Collections")
    assert [row[0] for row in found] == ["posts"]
    assert f'href="/console/collections/{posts}"' in superadmin.client.get("/console").text


def test_console_collection_list_empty_state(superadmin: Browser) -> None:
    assert "No collections yet." in superadmin.get("collections").text


def test_console_collection_page_shows_fields_and_rules(superadmin: Browser, posts: str) -> None:
    page = superadmin.get(f"collections/{posts}").text
    assert "2 records in all accounts" in page
    assert rows(page, "Fields") == [
        ["title", "Text", "required", ""],
        ["n", "Number", "unique   indexed", ""],
        ["email", "Email address", "personal data, mask: email", ""],
        ["up", "Reference to  posts", "", "keeps its target"],
        ["loud", "Text, computed", "", "upper(title)"],
    ]
    assert rows(page, "Rules") == [
        ["list", LABELS["closed"], "title"],
        ["view", LABELS["everyone"], "all fields"],
        ["create", LABELS["signed_in"], "all fields"],
        ["update", OWN, "all fields"],
        ["delete", LABELS["signed_in"], "\N{EN DASH}"],
    ]


def test_console_boolean_default_is_shown_as_yes_or_no(cast: Cast, superadmin: Browser) -> None:
    lent = {"name": "lent", "type": "boolean", "default": False}
    id = make_collection(cast.root, "books", [lent, {**lent, "name": "new", "default": True}])["id"]
    page = superadmin.get(f"collections/{id}").text
    assert "default no" in page
    assert "default yes" in page
    assert "default False" not in page


def test_console_rules_editor_shows_stored_rules(superadmin: Browser, posts: str) -> None:
    page = superadmin.get(f"collections/{posts}/rules").text
    expected = {(key, value) for key, value in form().items() if key.endswith(("choice", "which"))}
    offered = re.findall(r'name="update_fields" value="(\w+)"', page)
    assert offered == ["title", "n", "email", "up"]
    # Who chooses "only some" instead of all fields begins with all of them.
    lists = {("list_fields", "title"), ("view_fields", "loud")}
    lists |= {(f"{one}_fields", name) for one in ("view", "create", "update") for name in offered}
    assert chosen(page) == expected | lists
    assert (text_in(page, "update_rule"), text_in(page, "list_rule")) == (OWN, "")


def test_console_rules_editor_lists_names_and_functions(superadmin: Browser, posts: str) -> None:
    page = superadmin.get(f"collections/{posts}/rules").text
    names = {row[0]: row[1:] for row in rows(page, "Names of this collection")}
    assert names["n"] == ["Number", ""]
    assert names["loud"] == ["Text", "computed"]
    assert names["created_at"] == ["Date and time", "of every record"]
    assert names["up"] == ["Text", "leads to posts:  up.id"]
    for name in (*CALLERS, *SPECIAL, *FUNCTIONS):
        assert f"<code>{name}(" in page, name


def test_console_rules_form_unchanged_saves_same_rules(
    cast: Cast, superadmin: Browser, posts: str
) -> None:
    before = rules_of(cast.root)
    assert "are saved" in superadmin.done(f"collections/{posts}/rules", **form())
    assert rules_of(cast.root) == before


@pytest.mark.parametrize("choice", [*RULE_BY_CHOICE, "expression"])
def test_console_rules_form_saves_every_choice(
    cast: Cast, superadmin: Browser, posts: str, choice: str
) -> None:
    rule = " n > 1\r\n|| title = 'a' "
    changes = {f"{one}_choice": choice for one in OPERATIONS}
    # Texts beside another choice count for nothing.
    changes |= {f"{one}_rule": rule for one in OPERATIONS}
    superadmin.done(f"collections/{posts}/rules", **form(**changes))
    expected = RULE_BY_CHOICE.get(choice, "n > 1\n|| title = 'a'")
    saved = rules_of(cast.root)
    assert [saved[f"{one}_rule"] for one in OPERATIONS] == [expected] * 5
    page = superadmin.get(f"collections/{posts}/rules").text
    assert {(f"{one}_choice", choice) for one in OPERATIONS} <= chosen(page)


def test_console_rules_form_saves_field_lists(cast: Cast, superadmin: Browser, posts: str) -> None:
    lists = {"list_which": "all", "view_which": "some", "view_fields": ["n", "loud"]}
    lists |= {"create_which": "some", "update_which": "some", "update_fields": ["title"]}
    superadmin.done(f"collections/{posts}/rules", **form(**lists))
    saved = rules_of(cast.root)
    found = [saved[f"{one}_fields"] for one in OPERATIONS[:4]]
    assert found == ["*", ["n", "loud"], [], ["title"]]


def test_console_rules_form_reports_all_mistakes_and_keeps_input(
    cast: Cast, superadmin: Browser, posts: str
) -> None:
    before = rules_of(cast.root)
    typed = {"view_rule": "title = 1", "update_rule": f"name = '{HOSTILE}'", "delete_rule": "n >"}
    changes = typed | {f"{one}_choice": "expression" for one in OPERATIONS}
    changes |= {"create_which": "some", "create_fields": ["title", "<b>nope</b>"]}
    for action in ("rules", "rules/preview"):
        answer = superadmin.send(f"collections/{posts}/{action}", **form(**changes))
        assert answer.status_code == 400
        assert "Enter an expression" in beside(answer, "list_rule")
        assert beside(answer, "view_rule") == "Expected a text, found a number."
        assert beside(answer, "update_rule") == "There is no field name."
        assert beside(answer, "delete_rule").startswith("Expected ")
        assert beside(answer, "create_fields") == "There is no field &lt;b&gt;nope&lt;/b&gt;."
        assert marks(answer.text) == ["1", "name"]
        assert "At character 9" in answer.text
        assert "At character 4: the end" in answer.text
        assert {name: text_in(answer.text, name) for name in typed} == typed
        assert {("create_which", "some"), ("create_fields", "title")} <= chosen(answer.text)
        assert HOSTILE not in answer.text
        assert "What this changes" not in answer.text
    assert rules_of(cast.root) == before


def test_console_rules_form_with_unknown_choice_is_400(
    cast: Cast, superadmin: Browser, posts: str
) -> None:
    before = rules_of(cast.root)
    answer = superadmin.send(f"collections/{posts}/rules", **form(view_choice="nobody"))
    assert (answer.status_code, alert(answer)) == (400, "Choose who may view.")
    assert superadmin.send(f"collections/{posts}/rules").status_code == 400
    assert rules_of(cast.root) == before


def test_console_rules_form_after_concurrent_change_is_409(
    cast: Cast, superadmin: Browser, posts: str
) -> None:
    assert cast.root.put("collections/posts/rules", {"delete_rule": "n = 1"}).status_code == 200
    late = form(list_choice="everyone")
    answer = superadmin.send(f"collections/{posts}/rules", **late)
    assert (answer.status_code, "was changed meanwhile" in alert(answer)) == (409, True)
    assert ("list_choice", "everyone") in chosen(answer.text)
    assert rules_of(cast.root)["delete_rule"] == "n = 1"
    preview = superadmin.send(f"collections/{posts}/rules/preview", **late).text
    assert ["delete: who", "n = 1", LABELS["signed_in"]] in rows(preview, "Changes of the rules")
    version = re.findall(r'name="version" value="(\d+)"', preview)
    superadmin.done(f"collections/{posts}/rules", **late | {"version": version[0]})
    assert rules_of(cast.root)["delete_rule"] == "true"


def test_console_rules_preview_shows_gained_and_lost_access(
    cast: Cast, superadmin: Browser, posts: str
) -> None:
    before, records = rules_of(cast.root), cast.bob.get("records/posts?fields=id").json
    assert records["error"] == "rule_denied"
    proposed = form(view_choice="expression", view_rule="@owns_record()", update_which="some")
    proposed |= {"list_choice": "signed_in", "update_fields": ["n"]}
    page = superadmin.send(f"collections/{posts}/rules/preview", **proposed).text
    assert rows(page, "Changes of the rules") == [
        ["list: who", LABELS["closed"], LABELS["signed_in"]],
        ["view: who", LABELS["everyone"], "@owns_record()"],
        ["update: fields", "all fields", "n"],
    ]
    effect = {tuple(row[:2]): row[2:] for row in rows(page, "Records gained and lost")}
    diff = cast.root.post(
        "collections/posts/rules/diff",
        {"rules": {"list_rule": "true", "view_rule": "@owns_record()"}},
    ).json["items"]
    changed = {
        ("not signed in" if one["role"] == "anonymous" else one["role"], one["operation"]): one
        for one in diff
        if one["gained"]["count"] or one["lost"]["count"]
    }
    assert effect.keys() == changed.keys()
    assert ("viewer", "list") in effect
    assert ("not signed in", "view") in effect
    for key, (gained, lost) in effect.items():
        for shown, side in ((gained, "gained"), (lost, "lost")):
            expected = changed[key][side]
            assert shown.split() == [str(expected["count"]), *expected["sample"]]
    assert ("view_choice", "expression") in chosen(page)
    assert text_in(page, "view_rule") == "@owns_record()"
    assert rules_of(cast.root) == before


def test_console_rules_preview_without_change(superadmin: Browser, posts: str) -> None:
    page = superadmin.send(f"collections/{posts}/rules/preview", **form()).text
    assert "the rules are unchanged" in page
    looser = form(update_rule=f"{OWN} || title = 'none'", create_which="some")
    page = superadmin.send(f"collections/{posts}/rules/preview", **looser).text
    assert len(rows(page, "Changes of the rules")) == 2
    assert "Nobody gains or loses access" in page


TYPED = [
    ("n > 1", "", None),
    ("true", "", None),
    (OWN, "", None),
    ("", "Enter an expression, or choose another option.", None),
    ("title = 1", "Expected a text, found a number.", "1"),
    ("up.nope = 1", "There is no field nope.", "up"),
    ("title = '<b>", "This text has no closing quote.", "'"),
    ("n > 1 &&", "Expected a value, found the end.", None),
]


@pytest.mark.parametrize(("text", "message", "marked"), TYPED)
def test_console_rule_check_reports_mistake_and_marks_it(
    superadmin: Browser, posts: str, text: str, message: str, marked: str | None
) -> None:
    answer = superadmin.send(f"collections/{posts}/rules/view/check", text=text)
    assert (answer.status_code, beside(answer, "view_rule")) == (200, message)
    assert ("Valid rule." in answer.text) == (message == "")
    assert marks(answer.text) == ([marked] if marked else [])
    assert ("<html" in answer.text, "<b>" in answer.text) == (False, False)


def test_console_rule_check_shortens_long_text_around_mistake(
    superadmin: Browser, posts: str
) -> None:
    text = " || ".join(["n = 1"] * 20 + ["nope = 1"] + ["n = 1"] * 20)
    answer = superadmin.send(f"collections/{posts}/rules/view/check", text=text)
    assert marks(answer.text) == ["nope"]
    assert len(re.sub(r"<[^>]*>", "", answer.text)) < 300
    for odd in ("\0" * 9, "\ud800".encode("utf-8", "surrogatepass"), "(" * 5000, "é" * 3000):
        answer = superadmin.send(f"collections/{posts}/rules/view/check", text=odd)
        assert (answer.status_code, beside(answer, "view_rule") != "") == (200, True)


def test_console_rule_check_accepts_csrf_token_of_page(superadmin: Browser, posts: str) -> None:
    page = superadmin.get(f"collections/{posts}/rules").text
    (found,) = set(re.findall(r'name="csrf_token" value="([^"]+)"', page.partition("<main")[2]))
    path = f"/console/collections/{posts}/rules/view/check"
    assert f'data-check="{path}"' in page
    answer = superadmin.client.post(path, data={"csrf_token": found, "text": "n > 1"})
    assert (answer.status_code, "Valid rule." in answer.text) == (200, True)
