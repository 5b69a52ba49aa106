"""`/directory`: what the users of an account see of each other."""

from __future__ import annotations

from typing import Any

import marshmallow as ma

from app import web
from app.accounts import directory
from app.accounts.directory import COLUMNS, MAX_IDS, MAX_LIMIT, Settings
from app.accounts.types import Body, Query
from app.auth.guard import optimistic, principal
from app.auth.principal import rule_caller
from app.types import JSONObject
from app.web import fields
from app.web.access import signed_in, superadmin
from app.web.blueprint import Blueprint
from app.web.examples import USER_ID
from app.web.fields import doc
from app.web.schemas import Problem, Schema, View, example

blueprint = Blueprint(
    "Directory",
    __name__,
    url_prefix=f"{web.PREFIX}/directory",
    description="The people of your account, as far as its users see each other.",
)

MAX_RULE = 2**30  # the rule language has its own limit, and answers 400 with a position
RULE = "Who sees others: an expression over the caller alone. Others see themselves."
FIELDS = (
    f"What they see beside the ids: {', '.join(COLUMNS)}, or as `attributes.department` attributes"
    " that are `visible_to` members."
)


class DirectoryArgs(Schema):
    """What is looked for in the directory."""

    search = fields.Text(
        longest=200, **doc("Beginnings of words of the shown fields, in any case, without accents.")
    )
    ids = fields.Text(
        longest=MAX_IDS * 40,
        **doc(f"Ids of users, at most {MAX_IDS}, separated by commas. Unknown ones are left out."),
    )
    limit = fields.Integer(1, MAX_LIMIT, **doc("How many; by default 30, with `ids` all."))
    cursor = fields.Text(longest=3000, **doc("`next_cursor` of the page before."))

    @ma.post_load
    def split_ids(self, args: JSONObject, **options: object) -> JSONObject:
        """Turn ids into a list."""
        if "ids" not in args:
            return args
        listed = [one.strip() for one in args["ids"].split(",") if one.strip()]
        if len(listed) > MAX_IDS:
            raise ma.ValidationError(f"At most {MAX_IDS} ids.", "ids")
        return args | {"ids": listed}


@example(id=USER_ID, name="Ann Smith")
class Person(View):
    """A user as others see them: the id, and the fields that the operator shows."""

    optional = (*COLUMNS, "attributes")

    id = fields.Id()
    name = ma.fields.String(allow_none=True)
    email = ma.fields.String(metadata=fields.EMAIL)
    role = ma.fields.String()
    is_active = ma.fields.Boolean()
    attributes = ma.fields.Dict(**doc("The shown attributes, by name."))


@example(next_cursor=None)
class People(View):
    """A page of the directory."""

    items = ma.fields.List(ma.fields.Nested(Person))
    next_cursor = ma.fields.String(allow_none=True, **doc("Of the next page; null on the last."))


class DirectoryBody(Schema):
    """The settings of the directory; what is absent stays as it is."""

    rule = fields.Text(longest=MAX_RULE, **doc(RULE))
    fields_ = ma.fields.List(
        fields.Text(longest=100),
        data_key="fields",
        attribute="fields",
        validate=ma.validate.Length(max=100),
        **doc(FIELDS),
    )


@example(rule="true", fields=["name"], warnings=[])
class DirectoryView(View):
    """The settings of the directory."""

    rule = ma.fields.String(**doc(RULE))
    fields_ = ma.fields.List(
        ma.fields.String(), data_key="fields", attribute="fields", **doc(FIELDS)
    )
    warnings = ma.fields.List(
        ma.fields.Nested(Problem), **doc("Groups of the rule that no account has.")
    )


@blueprint.route("", methods=["GET"])
@blueprint.arguments(DirectoryArgs, location="query")
@blueprint.response(200, People)
@signed_in
@optimistic
def list_people(args: Query) -> dict[str, Any]:
    """List the people of your account, as far as you see them.

    Which fields are shown, and to whom, is the operator's decision; who sees no others finds
    themself alone. Ordered by name if names are shown, else by id. Users who are deactivated are
    found by `ids` only.
    """
    caller = principal()
    items, cursor = directory.page(
        caller.require_account_id(),
        rule_caller(caller),
        caller.version_checks,
        directory.Query(**args),
    )
    return {"items": items, "next_cursor": cursor}


@blueprint.route("/settings", methods=["GET"])
@blueprint.response(200, DirectoryView)
@superadmin
def get_directory_settings() -> Settings:
    """Get what the users of all accounts see of each other."""
    return directory.current()


@blueprint.route("/settings", methods=["PUT", "PATCH"])
@blueprint.arguments(DirectoryBody, example={"fields": ["name", "role"]})
@blueprint.response(200, DirectoryView)
@superadmin
def update_directory_settings(body: Body) -> Settings:
    """Set what the users of all accounts see of each other.

    It takes effect with the next request. A role of the rule that does not exist is a 400
    `unknown_role`; a group that no account has is a warning.
    """
    return directory.change(body)
