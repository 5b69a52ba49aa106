"""The requests that Okta and Entra ID send, as their documents have them.

developer.okta.com, "SCIM 2.0 protocol"; learn.microsoft.com, "Develop a SCIM endpoint".
"""

from __future__ import annotations

from typing import Any

from tests.builders import Cast
from tests.scim.conftest import Directory
from tests.scim.sequences import GROUP, USER, Step, patch, run

ENTERPRISE = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"
FIND = 'Users?filter=userName%20eq%20"{name}"&startIndex=1&count=100'


def okta_user(**changes: Any) -> dict[str, Any]:
    """A user as Okta sends one."""
    return {
        "schemas": [USER],
        "userName": "test.user@okta.example",
        "name": {"givenName": "Test", "familyName": "User"},
        "emails": [{"primary": True, "value": "test.user@okta.example", "type": "work"}],
        "displayName": "Test User",
        "locale": "en-US",
        "externalId": "00ujl29u0le5T6Aj10h7",
        "groups": [],
        "password": "1mz050nq",
        "active": True,
        **changes,
    }


def test_scim_okta_request_sequence(okta: Directory) -> None:
    name = {"givenName": "Another", "familyName": "User"}
    run(
        okta,
        [
            Step("GET", FIND.format(name="test.user@okta.example"), answer={"totalResults": 0}),
            Step(
                "POST",
                "Users",
                okta_user(),
                201,
                {"active": True, "userName": "test.user@okta.example", "displayName": "Test User"},
                absent=("password", "locale", "groups"),
                name="user",
            ),
            Step("POST", "Users", okta_user(), 409, {"scimType": "uniqueness", "status": "409"}),
            Step("GET", "Users/{user}", answer={"name": {"givenName": "Test"}, "id": "{user}"}),
            Step("GET", "Users?startIndex=1&count=2", answer={"itemsPerPage": 2}),
            Step(
                "PUT",
                "Users/{user}",
                okta_user(id="{user}", name=name, meta={"resourceType": "User"}),
                answer={"name": name},
            ),
            Step(
                "PATCH",
                "Users/{user}",
                patch({"op": "replace", "value": {"active": False}}),
                answer={"active": False, "name": name},
            ),
            Step("PUT", "Users/{user}", okta_user(active=True), answer={"active": True}),
            Step(
                "POST",
                "Groups",
                {"schemas": [GROUP], "displayName": "Test SCIMv2", "members": []},
                201,
                {"displayName": "Test SCIMv2"},
                name="group",
            ),
            Step(
                "PATCH",
                "Groups/{group}",
                patch({"op": "replace", "value": {"id": "{group}", "displayName": "SCIMv20"}}),
                answer={"displayName": "SCIMv20"},
            ),
            Step(
                "PATCH",
                "Groups/{group}",
                patch(
                    {
                        "op": "add",
                        "path": "members",
                        "value": [{"value": "{user}", "display": "test.user@okta.example"}],
                    }
                ),
                answer={"members": [{"value": "{user}"}]},
            ),
            Step("GET", "Users/{user}", answer={"groups": [{"display": "SCIMv20"}]}),
            Step(
                "PATCH",
                "Groups/{group}",
                patch({"op": "remove", "path": 'members[value eq "{user}"]'}),
                absent=("members",),
            ),
            Step(
                "PUT",
                "Groups/{group}",
                {
                    "schemas": [GROUP],
                    "id": "{group}",
                    "displayName": "SCIMv20",
                    "members": [{"value": "{user}", "display": "x"}],
                },
                answer={"members": [{"value": "{user}"}]},
            ),
            Step("GET", "Groups?startIndex=1&count=100", answer={"totalResults": 2}),
            Step("DELETE", "Groups/{group}", status=204),
            Step("GET", "Groups/{group}", status=404, answer={"status": "404"}),
        ],
    )


def test_scim_okta_takes_over_invited_user(okta: Directory, cast: Cast) -> None:
    bob = {"userName": "BOB@acme.example", "emails": [{"value": "bob@acme.example"}]}
    run(
        okta,
        [
            Step(
                "GET",
                FIND.format(name="Bob@Acme.example"),
                answer={"totalResults": 1, "Resources": [{"id": cast.bob.id}]},
            ),
            Step("POST", "Users", bob, 409, {"scimType": "uniqueness"}),
            Step(
                "PUT", f"Users/{cast.bob.id}", okta_user(**bob), answer={"displayName": "Test User"}
            ),
            Step(
                "PATCH",
                f"Users/{cast.bob.id}",
                patch({"op": "replace", "value": {"active": False}}),
                answer={"active": False},
            ),
        ],
    )
    assert cast.bob.get("auth/me").status_code == 401


def entra_user(**changes: Any) -> dict[str, Any]:
    """A user as Entra ID sends one."""
    return {
        "schemas": [USER, ENTERPRISE],
        "externalId": "0a21f0f2-8d2a-4f8e-bf98-7363c4aed4ef",
        "userName": "Test_User_ab6490ee",
        "active": True,
        "emails": [{"primary": True, "type": "work", "value": "Test_User_fd0ea19b@testuser.com"}],
        "meta": {"resourceType": "User"},
        "name": {
            "formatted": "givenName familyName",
            "familyName": "familyName",
            "givenName": "givenName",
        },
        "roles": [],
        ENTERPRISE: {"department": "Finance", "manager": {"value": "x"}},
        **changes,
    }


def test_scim_entra_id_user_request_sequence(entra: Directory) -> None:
    run(
        entra,
        [
            Step("GET", FIND.format(name="non-existent user"), answer={"totalResults": 0}),
            Step(
                "POST",
                "Users",
                entra_user(),
                201,
                {"userName": "Test_User_ab6490ee", "name": entra_user()["name"]},
                absent=("roles", ENTERPRISE),
                name="user",
            ),
            Step("GET", "Users/{user}", answer={"externalId": entra_user()["externalId"]}),
            Step("GET", "Users/5171a35d82074e068ce2", status=404, answer={"status": "404"}),
            Step(
                "GET",
                FIND.format(name="test_user_AB6490EE"),
                answer={"totalResults": 1, "Resources": [{"id": "{user}"}]},
            ),
            Step(
                "PATCH",
                "Users/{user}",
                patch(
                    {
                        "op": "Replace",
                        "path": 'emails[type eq "work"].value',
                        "value": "updatedEmail@microsoft.com",
                    },
                    {"op": "Replace", "path": "name.familyName", "value": "updatedFamilyName"},
                    {"op": "Add", "path": f"{ENTERPRISE}:department", "value": "Sales"},
                    {"op": "Add", "path": 'phoneNumbers[type eq "work"].value', "value": "1"},
                ),
                answer={
                    "emails": [{"type": "work", "value": "updatedEmail@microsoft.com"}],
                    "name": {"familyName": "updatedFamilyName", "givenName": "givenName"},
                },
            ),
            Step(
                "PATCH",
                "Users/{user}",
                patch({"op": "Replace", "path": "userName", "value": "5b50642d@contoso.com"}),
                answer={
                    "userName": "5b50642d@contoso.com",
                    "emails": [{"value": "updatedEmail@microsoft.com"}],
                },
            ),
            Step(
                "PATCH",
                "Users/{user}",
                patch({"op": "Replace", "path": "active", "value": "False"}),
                answer={"active": False},
            ),
            Step(
                "PATCH",
                "Users/{user}",
                patch(
                    {
                        "op": "replace",
                        "value": {
                            "active": "True",
                            "name.givenName": "Dotted",
                            'emails[type eq "work"].value': "dotted@microsoft.com",
                            f"{ENTERPRISE}:department": "Sales",
                        },
                    }
                ),
                answer={
                    "active": True,
                    "name": {"givenName": "Dotted"},
                    "emails": [{"value": "dotted@microsoft.com"}],
                },
            ),
            Step("DELETE", "Users/{user}", status=204),
            Step("GET", "Users/{user}", status=404),
            Step("DELETE", "Users/{user}", status=404),
        ],
    )


def test_scim_entra_id_group_request_sequence(entra: Directory) -> None:
    microsoft = "http://schemas.microsoft.com/2006/11/ResourceManagement/ADSCIM/2.0/Group"
    group = {
        "schemas": [GROUP, microsoft],
        "externalId": "8aa1a0c0-c4c3-4bc0-b4a5-2ef676900159",
        "displayName": "displayName",
        "meta": {"resourceType": "Group"},
    }
    find = 'Groups?excludedAttributes=members&filter=displayName%20eq%20"{}"'
    members = [{"$ref": None, "value": "{user}"}]
    run(
        entra,
        [
            Step("POST", "Users", entra_user(), 201, name="user"),
            Step("POST", "Groups", group, 201, {"displayName": "displayName"}, name="group"),
            Step("POST", "Groups", group, 409, {"scimType": "uniqueness"}),
            Step("GET", "Groups/{group}?excludedAttributes=members", absent=("members",)),
            Step("GET", find.format("DisplayName"), answer={"Resources": [{"id": "{group}"}]}),
            Step(
                "PATCH",
                "Groups/{group}",
                patch({"op": "Replace", "path": "displayName", "value": "1879db59"}),
                answer={"displayName": "1879db59"},
            ),
            Step(
                "PATCH",
                "Groups/{group}",
                patch({"op": "Add", "path": "members", "value": members}),
                answer={"members": [{"value": "{user}"}]},
            ),
            Step(
                "GET",
                'Groups?filter=id eq "{group}" and members eq "{user}"',
                answer={"totalResults": 1},
            ),
            Step(
                "PATCH",
                "Groups/{group}",
                patch({"op": "Remove", "path": "members", "value": members}),
                absent=("members",),
            ),
            Step(
                "GET",
                'Groups?filter=id eq "{group}" and members eq "{user}"',
                answer={"totalResults": 0, "Resources": []},
            ),
            Step("DELETE", "Groups/{group}", status=204),
        ],
    )
