"""Operations that fit no attribute are refused, and no failure of the service."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scim.conftest import Directory
from tests.scim.sequences import patch

FILTER = 'value eq "x"'
OPERATIONS: dict[str, list[dict[str, Any]]] = {
    "filter on a text": [{"op": "replace", "path": f"userName[{FILTER}]", "value": "y"}],
    "filter on a boolean": [{"op": "replace", "path": f"active[{FILTER}]", "value": True}],
    "filter on one object": [{"op": "replace", "path": f"name[{FILTER}].familyName", "value": "y"}],
    "filter on what a text replaced": [
        {"op": "replace", "path": "emails", "value": "x"},
        {"op": "replace", "path": f"emails[{FILTER}]", "value": {"value": "y@acme.example"}},
    ],
    "values added to a text": [
        {"op": "add", "path": "emails", "value": [1, None, [], "x", {"value": []}]},
        {"op": "replace", "path": f"emails[{FILTER}].value", "value": 1},
    ],
    "filter to remove a text": [{"op": "remove", "path": f"displayName[{FILTER}]"}],
    "filter to add to a text": [{"op": "add", "path": f"displayName[{FILTER}]", "value": {"a": 1}}],
    "object for a text": [{"op": "add", "path": "userName", "value": {"a": 1}}],
}


@pytest.mark.parametrize("operations", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_scim_user_patch_with_unknown_path_is_400(
    okta: Directory, operations: list[dict[str, Any]]
) -> None:
    user = okta.make_user(displayName="Dora", name={"givenName": "D"})
    answer = okta.patch(f"Users/{user['id']}", patch(*operations))
    assert answer.status_code == 400, answer.text


GROUP_OPERATIONS: list[list[dict[str, Any]]] = [
    [{"op": "replace", "path": f"displayName[{FILTER}]", "value": "y"}],
    [
        {"op": "replace", "path": "members", "value": "x"},
        {"op": "remove", "path": f"members[{FILTER}]"},
    ],
]


@pytest.mark.parametrize("operations", GROUP_OPERATIONS)
def test_scim_group_patch_with_unknown_path_is_400(
    okta: Directory, operations: list[dict[str, Any]]
) -> None:
    answer = okta.patch(f"Groups/{okta.make_group('g')['id']}", patch(*operations))
    assert answer.status_code == 400, answer.text


def test_scim_patch_object_replaces_text_of_earlier_operation(okta: Directory) -> None:
    user, new = okta.make_user(displayName="Dora"), {"givenName": "D"}
    operations = [{"op": "replace", "path": "name", "value": "x"}]
    operations.append({"op": "add", "path": "name", "value": new})
    answer = okta.patch(f"Users/{user['id']}", patch(*operations))
    assert (answer.status_code, answer.json["name"]) == (200, new), answer.text
