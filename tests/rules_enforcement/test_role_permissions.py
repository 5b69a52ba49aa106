"""What rules open to a role, as `@snackbase/sdk` asks for it."""

from __future__ import annotations

import pytest

from tests.builders import Cast, make_collection

VIEWER, EDITOR = "roles/3", "roles/2"
# By rule: what it opens to viewers, and to editors.
REACH = {
    None: ("none", "none"),
    "": ("all", "all"),
    "true": ("all", "all"),
    "@has_role(editor)": ("none", "all"),
    "@has_any_role(admin, viewer)": ("all", "none"),
    "@request.auth.role = 'viewer'": ("all", "none"),
    "@request.auth.id = ''": ("none", "none"),
    "@request.auth.id != ''": ("all", "all"),
    "@request.auth.email = 'bob@acme.example'": ("some", "some"),
    "@has_group(finance)": ("some", "some"),
    "@owns_record()": ("some", "some"),
    "@has_role(editor) && title = 'x'": ("none", "some"),
    "@has_role(editor) || @owns_record()": ("some", "all"),
}


@pytest.mark.parametrize("rule", REACH)
def test_role_permission_matrix_shows_reach_per_operation(cast: Cast, rule: str | None) -> None:
    make_collection(cast.root)
    cast.root.put("collections/posts/rules", {"view_rule": rule, "delete_rule": None})
    for path, reach in zip((VIEWER, EDITOR), REACH[rule], strict=True):
        found = cast.root.get(f"{path}/permissions/matrix").json
        (row,) = found["items"]
        assert (row["collection"], row["view"], row["delete"]) == ("posts", reach, "none")
    assert (found["role_id"], found["role_name"], found["total"]) == (2, "editor", 1)


def test_role_permissions_are_rules_of_collections(cast: Cast) -> None:
    make_collection(cast.root)
    rules = cast.root.get("collections/posts/rules").json
    assert cast.root.get(f"{VIEWER}/permissions").json["items"] == [{**rules, "role_id": 3}]
    for path in (f"{VIEWER}/permissions", "roles/99/permissions", "roles/99/permissions/matrix"):
        assert cast.alice.get(path).status_code == 403
    assert cast.root.get("roles/99/permissions").status_code == 404
    assert cast.root.get("roles/99/permissions/matrix").status_code == 404


@pytest.mark.parametrize("path", ["rules", "roles"])
def test_rule_validation_and_test_have_two_paths(cast: Cast, path: str) -> None:
    suffix = "-rule" if path == "roles" else ""
    valid = cast.root.post(f"{path}/validate{suffix}", {"rule": "true"}).json
    assert valid == {"valid": True, "error": None, "errors": [], "details": [], "warnings": []}
    invalid = cast.root.post(f"{path}/validate{suffix}", {"rule": "("}).json
    assert invalid["error"] == invalid["errors"][0]
    tried = {"rule": "@owns_record()", "record": {"created_by": "u"}, "auth": {"id": "u"}}
    result = cast.root.post(f"{path}/test{suffix}", tried).json
    assert (result["result"], result["allowed"], result["error"]) == (True, True, None)
    assert cast.root.post(f"{path}/test{suffix}", {"rule": "("}).status_code == 400
