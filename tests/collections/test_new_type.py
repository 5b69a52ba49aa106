"""A field type is one class: the API, pages and the isolation check take it from the list."""

from __future__ import annotations

import re
from typing import ClassVar

import pytest
from flask import Flask

from app.collections import fields
from app.collections.fields.face import EQUALITY, Face
from app.types import JSONMapping
from app.web.languages import lazy_gettext
from tests.builders import Cast, make_collection
from tests.console.browser import Browser, beside
from tests.console.test_records import form_of

SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "paint", "type": "color", "required": True, "options": {"index": True}},
]


class ColorField(fields.Field):
    """A color of the web, such as #0000ff."""

    type = "color"
    label = lazy_gettext("Color")
    face = Face(comparisons=EQUALITY, width=9, rank=0)
    json_schema: ClassVar[JSONMapping] = {"type": "string", "pattern": "^#[0-9a-f]{6}$"}
    example = "#0000ff"

    def clean(self, value: object) -> str:
        """Six digits, in lower case."""
        if not isinstance(value, str) or not re.fullmatch("#[0-9a-fA-F]{6}", value):
            raise fields.InvalidValue("invalid_color", "Must be a color such as #0000ff.")
        return value.lower()


@pytest.fixture
def collection(monkeypatch: pytest.MonkeyPatch, cast: Cast) -> str:
    """The id of a collection with a field of the new type."""
    monkeypatch.setitem(fields.TYPES, "color", ColorField)
    return str(make_collection(cast.root, "walls", SCHEMA)["id"])


def test_new_type_in_api(cast: Cast, collection: str) -> None:
    refused = cast.alice.post("records/walls", {"paint": "red"})
    assert [one["code"] for one in refused.json["details"]] == ["invalid_color"]
    for paint in ("#FF0000", "#00ff00"):
        assert cast.alice.post("records/walls", {"paint": paint}).json["paint"] == paint.lower()
    for query in ({"paint": "#ff0000"}, {"filter": "paint ~ '#ff%'"}):
        found = cast.alice.get("records/walls", query_string=query).json["items"]
        assert [one["paint"] for one in found] == ["#ff0000"]
    described = cast.alice.get("/openapi.json?collections=1").json["components"]["schemas"]
    for name in ("walls_record", "walls_create"):
        assert described[name]["properties"]["paint"] == ColorField.json_schema


def test_new_type_in_console(app: Flask, cast: Cast, collection: str) -> None:
    admin, root = Browser(app, cast.alice), Browser(app, cast.root)
    path = f"records/{cast.alice.account_id}/walls"
    form = form_of(admin.get(f"{path}/new").text) | {"do": "save", "f_title": "north"}
    refused = admin.send(f"{path}/new", **{**form, "f_paint": "red"})
    assert "Must be a color" in beside(refused, "f_paint")
    assert admin.send(f"{path}/new", **{**form, "f_paint": "#00ff00"}).status_code == 303
    for value, is_found in (("#00ff00", True), ("#ffffff", False)):
        query = {"field_0": "paint", "op_0": "=", "value_0": value}
        answer = admin.client.get(f"/console/{path}", query_string=query)
        assert ('<td data-label="paint">#00ff00</td>' in answer.text) is is_found
    assert "paint = &#39;#0000ff&#39;" in admin.get(f"{path}/api").text
    assert "Color" in root.get(f"collections/{collection}").text
    assert '<option value="color">Color</option>' in root.get("collections/new").text


@pytest.mark.long
def test_new_type_in_isolation_check(app: Flask, collection: str) -> None:
    only = "/(console|api/v1)/records"
    result = app.test_cli_runner().invoke(args=["isolation-check", "--only", only])
    assert result.exit_code == 0, result.output
