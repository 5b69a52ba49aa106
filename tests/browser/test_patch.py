"""How a part of a page becomes equal to a newer copy, and what stays (static/console/patch.js)."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Visit

PUT = """html => {
  document.body.innerHTML = `<div id="part">${html}</div>`;
  window.kept = document.querySelectorAll("[data-kept]");
}"""
PATCH = """async html => {
  const { patch } = await import("/static/console/patch.js");
  const part = document.getElementById("part"), next = part.cloneNode();
  next.innerHTML = html;
  const { changed, removed } = patch(part, next);
  if (part.innerHTML.replace(' open=""', "") !== html) throw new Error(part.innerHTML);
  return [
    changed.map(row => row.dataset.key).sort().join(" "),
    removed,
    [...part.querySelectorAll(":checked")].map(box => box.name).join(" "),
    document.activeElement.name ?? document.activeElement.id,
    part.querySelector("details[open]")?.closest("tr").dataset.key ?? "",
    [...window.kept].every(node => node.isConnected),
  ];
}"""


def table(*keys: str, **texts: str) -> str:
    """A table with a box, a menu and a text in each row."""
    inside = (
        f'<tr data-key="{key}" data-kept=""><td><input type="checkbox" name="{key}"></td>'
        f"<td><details><summary>More</summary></details>{texts.get(key, key)}</td></tr>"
        for key in keys
    )
    return f'<div id="scrolls" tabindex="0"><table><tbody>{"".join(inside)}</tbody></table></div>'


@pytest.mark.parametrize(
    ("keys", "texts", "changed", "removed", "mine", "all_kept"),
    [
        ("abc", {}, "", 0, "b", True),
        ("xabc", {}, "x", 0, "b", True),
        ("abcx", {}, "x", 0, "b", True),
        ("bc", {}, "", 1, "b", False),
        ("cba", {}, "", 0, "b", True),
        ("bca", {"b": "new"}, "b", 0, "b", True),
        ("ac", {}, "", 1, "", False),
        ("xy", {}, "x y", 3, "", False),
        ("", {}, "", 3, "", False),
    ],
)
def test_dom_patch_keeps_user_state(
    visit: Visit,
    keys: str,
    texts: dict[str, str],
    changed: str,
    removed: int,
    mine: str,
    all_kept: bool,
) -> None:
    visit.page.goto("/console/sign-in")
    visit.page.evaluate(PUT, table(*"abc"))
    visit.page.locator("[name=b]").check()
    visit.page.locator("[data-key=b] summary").click()
    visit.page.locator("[name=b]").focus()
    found = visit.page.evaluate(PATCH, table(*keys, **texts))
    assert found == [changed, removed, mine, mine or "scrolls", mine, all_kept]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<p>one</p>", '<table class="rows"><tbody></tbody></table>'),
        ('<p class="note" id="x">1 <b>record</b></p>', '<p class="problem">2 records</p>'),
        ("text", "other <i>text</i>, and <i>more</i>"),
        ("<ul><li>1</li><li>2</li></ul>", "<ul><li>2</li></ul>"),
        ('<a href="/1">1</a>', '<a href="/2" rel="next">1</a><!-- end -->'),
    ],
)
def test_dom_patch_makes_parts_equal(visit: Visit, before: str, after: str) -> None:
    visit.page.goto("/console/sign-in")
    visit.page.evaluate(PUT, before)
    visit.page.evaluate(PATCH, after)
