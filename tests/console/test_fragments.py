"""The console's page of fragments of rules."""

from __future__ import annotations

from tests.builders import OPEN, Cast, make_collection, make_record
from tests.console.browser import Browser

PATH = "collections/fragments"


def test_console_fragments_are_previewed_saved_and_kept(superadmin: Browser, cast: Cast) -> None:
    saved = superadmin.send(PATH, name_0="staff", text_0="@has_role(admin)")
    assert saved.status_code == 303
    assert "The fragments are saved." in superadmin.get(PATH).text
    make_collection(cast.root, "posts", [{"name": "title", "type": "text"}], **OPEN)
    cast.root.put("collections/posts/rules", {"list_rule": "@rule(staff)"})
    make_record(cast.alice, title="a")
    shown = superadmin.get(PATH)
    assert "posts.list_rule" in shown.text
    changed = {"name_0": "staff", "text_0": "@has_role(viewer)", "name_1": "", "text_1": ""}
    preview = superadmin.send(f"{PATH}/preview", **changed)
    assert "posts: " in preview.text
    assert "viewer" in preview.text
    assert cast.root.get("rules/fragments").json == {"staff": "@has_role(admin)"}
    refused = superadmin.send(PATH, name_0="staff", text_0="")
    assert refused.status_code == 409
    assert "This uses the fragment staff" in refused.text
    invalid = superadmin.send(PATH, name_0="staff", text_0="title >")
    assert "Expected a value" in invalid.text
    assert superadmin.send(PATH, **changed).status_code == 303
    assert cast.root.get("rules/fragments").json == {"staff": "@has_role(viewer)"}
    verdict = superadmin.send(f"{PATH}/check", expression="@has_role(viewer)")
    assert verdict.status_code == 200
