"""The summary of a refused form names inputs as their labels do."""

from __future__ import annotations

import re

import pytest
from flask import Flask

from app.console.shell import forms
from tests.builders import Cast, make_collection
from tests.console.browser import HOSTILE, Browser

LINK = re.compile(r'<a href="#([^"]+)" data-labelled>([^<]*)</a>')

REFUSED = [
    ("team/invite", {"email": "nobody"}, {"email": "Email addresses"}),
    ("groups/new", {}, {"name": "Name"}),
    ("profile", {"email": ""}, {"email": "Email"}),
    ("profile/password", {}, {"current_password": "Current password"}),
    ("webhooks/{account}/new", {"name": "x", "url": ""}, {"url": "Address"}),
    ("workflows/{account}/workflow/new", {"trigger": "{"}, {"name": "Name"}),
    ("records/{account}/counters/new", {"f_views": "many"}, {"f_views": "views"}),
]


@pytest.mark.parametrize(("path", "form", "expected"), REFUSED)
def test_form_error_summary_links_have_input_labels(
    app: Flask, cast: Cast, path: str, form: dict[str, str], expected: dict[str, str]
) -> None:
    make_collection(cast.root, "counters", [{"name": "views", "type": "number"}])
    path = path.format(account=cast.alice.account_id)
    page = Browser(app, cast.alice).send(path, **form).text
    links = dict(LINK.findall(page))
    assert {name: links.get(name) for name in expected} == expected
    for name in links:
        assert f' id="{name}"' in page


def test_form_label_lookup_escapes_labels() -> None:
    links = "".join(f'<a href="#{name}" data-labelled>X</a>' for name in "abcdef")
    inputs = f"""
        <label for="a">A <small>hint</small></label><input id="a">
        <label>B <select name="b"><option>no</option></select></label>
        <label><input type="checkbox" id="c" name="c"> See</label>
        <fieldset id="d"><legend>D</legend><label><input name="d"> no</label></fieldset>
        <label for="e">{HOSTILE.replace("<", "&lt;")}</label>"""
    page = forms.fill_labels(links + inputs)
    named = dict(LINK.findall(page))
    assert [named[name] for name in "abcdf"] == ["A", "B", "See", "D", "X"]
    assert page.endswith(inputs)
    assert "<script" not in page


LABEL = re.compile(r'<label class="form-label( required)?" for="([^"]+)">')
INPUT = re.compile(
    r'<(?:input|select|textarea) id="([^"]+)"[^>]*?( required| aria-required="true")'
)
MARKED = [
    ("webhooks/{account}/new", {"url", "collection"}, {"filter", "headers"}),
    ("keys/new", {"name"}, {"description", "ip_addresses"}),
    ("records/{account}/counters/new", {"f_views", "f_kind"}, {"f_note"}),
]


@pytest.mark.parametrize(("path", "required", "optional"), MARKED)
def test_required_inputs_are_marked_for_screen_readers(
    app: Flask, cast: Cast, path: str, required: set[str], optional: set[str]
) -> None:
    kinds = {"type": "text", "required": True, "options": {"choices": ["a", "b"]}}
    fields = [{"name": "views", "type": "number", "required": True}, {"name": "kind", **kinds}]
    make_collection(cast.root, "counters", [*fields, {"name": "note", "type": "text"}])
    page = Browser(app, cast.alice).get(path.format(account=cast.alice.account_id)).text
    labels = {name: bool(mark) for mark, name in LABEL.findall(page)}
    told = {name for name, _ in INPUT.findall(page)}
    assert {name for name in required | optional if labels[name]} == required
    assert told & (required | optional) == required
    assert "* required" in page
