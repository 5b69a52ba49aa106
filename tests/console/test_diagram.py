"""The diagram of collections: a layout in layers, and a page that works as links and as a table."""

from __future__ import annotations

import itertools
import re

from flask import Flask

from app.console.collections import diagram
from app.console.collections.diagram import WIDTH, Box, Reference
from tests.builders import Cast, make_collection
from tests.console.browser import Browser


def drawn(*arrows: str, alone: str = "") -> tuple[diagram.Diagram, dict[str, Box]]:
    """The diagram of references such as `a>b`, and its boxes by name."""
    references = [Reference(one[0], "f", one[2], required=True) for one in arrows]
    found = diagram.draw(sorted({*"".join(arrows).replace(">", ""), *alone}), references)
    return found, {box.name: box for box in found.boxes}


def test_diagram_places_collection_right_of_its_references() -> None:
    found, boxes = drawn("b>a", "c>b", "c>a", "d>a")
    assert boxes["a"].x < boxes["b"].x == boxes["d"].x < boxes["c"].x
    assert len(found.lines) == 4
    assert {(box.x, box.y) for box in found.boxes} == {(box.x, box.y) for box in boxes.values()}


def test_diagram_draws_circular_and_self_references() -> None:
    found, boxes = drawn("a>b", "b>c", "c>a", "a>a", "d>a")
    assert len(found.lines) == 5
    assert boxes["d"].x > boxes["a"].x
    assert len({(box.x, box.y) for box in found.boxes}) == 4


def test_diagram_places_collections_without_references_below() -> None:
    _, boxes = drawn("b>a", alone="xyz")
    lowest = max(boxes[name].y + boxes[name].height for name in "ab")
    assert all(boxes[name].y > lowest for name in "xyz")


def test_diagram_boxes_do_not_overlap() -> None:
    names = [f"c{n}" for n in range(300)]
    references = [Reference(f"c{n}", "f", f"c{n * 7 % 300}", required=False) for n in range(300)]
    references += [Reference(f"c{n}", f"f{n}", "c0", required=True) for n in range(300)]
    references += [Reference("c5", f"g{n}", f"c{n}", required=True) for n in range(300)]
    found = diagram.draw(names, references)
    assert len(found.boxes) == 300
    columns: dict[int, list[Box]] = {}
    for box in found.boxes:
        columns.setdefault(box.x, []).append(box)
        assert box.x + WIDTH <= found.width
        assert box.y + box.height <= found.height
    for boxes in columns.values():
        boxes.sort(key=lambda box: box.y)
        for upper, lower in itertools.pairwise(boxes):
            assert upper.y + upper.height <= lower.y
    many = next(box for box in found.boxes if box.name == "c5")
    assert len(many.rows) + many.hidden == 302


def test_diagram_of_3000_chained_collections_needs_no_recursion() -> None:
    names = [f"c{n}" for n in range(3000)]
    chain = [Reference(f"c{n}", "f", f"c{n + 1}", required=True) for n in range(2999)]
    boxes = {box.name: box for box in diagram.draw(names, chain).boxes}
    assert boxes["c0"].x > boxes["c1"].x > boxes["c2999"].x


def test_diagram_page_links_each_collection(app: Flask, cast: Cast) -> None:
    people = make_collection(cast.root, "people", [{"name": "name", "type": "text"}])["id"]
    author = {"name": "author", "type": "reference", "collection": "people"}
    fields = [{**author, "required": True}, {**author, "name": "editor"}]
    books = make_collection(cast.root, "books", fields)["id"]
    superadmin = Browser(app, cast.root)
    assert 'href="/console/collections/diagram"' in superadmin.get("collections").text
    page = superadmin.get("collections/diagram").text
    (svg,) = re.findall(r'<svg class="diagram fits" .*?</svg>', page, re.DOTALL)
    for id in (people, books):
        assert f'<a href="/console/collections/{id}">' in svg
    assert svg.count('class="line" ') == 1
    assert svg.count('class="line optional"') == 1
    assert page.count(">author<") == 2
    assert Browser(app, cast.alice).get("collections/diagram").status_code == 403
    shown = superadmin.get(f"collections/{people}").text
    assert "books.author" in shown
    assert "books.editor" in shown


def test_diagram_box_lists_fields_with_references_first() -> None:
    fields = {"a": [("id_number", "Text"), *((f"x{n}", "Number") for n in range(20)), ("f", "")]}
    found = diagram.draw(["a", "b"], [Reference("a", "f", "b", required=True)], fields)
    box = next(box for box in found.boxes if box.name == "a")
    assert [row.name for row in box.rows] == ["id_number", *(f"x{n}" for n in range(9)), "f"]
    assert (len(box.rows), box.hidden, len(found.lines)) == (11, 11, 1)


def test_diagram_boxes_without_references_do_not_overlap() -> None:
    fields = {
        name: [(f"f{n}", "") for n in range(size)]
        for name, size in zip("abcdef", range(6), strict=True)
    }
    found = diagram.draw(list("abcdef"), [], fields)
    first = [box for box in found.boxes if box.name in "abcd"]
    second = [box for box in found.boxes if box.name in "ef"]
    assert max(box.y + box.height for box in first) < min(box.y for box in second)
