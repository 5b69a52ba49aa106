"""`/scim/v2`: users and groups for the account's directory (RFC 7644).

A SCIM token is the only credential. The routes are no part of the API description, as SCIM
describes itself (`/Schemas`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, request

from app.auth.guard import limit_body, principal
from app.errors import AppError, Forbidden, Malformed
from app.sso.scim import attributes, errors, groups, resources, schemas, users
from app.sso.scim.attributes import GROUP, USER, ResourceType
from app.types import JSONMapping, JSONObject
from app.web import error_handlers, preconditions, serialization
from app.web.access import directory
from app.web.parsing import refuse_repeated
from app.web.preconditions import Preconditions
from app.web.serialization import dumps

MEDIA_TYPE = "application/scim+json"
MAX_BODY = 2**20
NO_FILTER = "These cannot be filtered."

blueprint = Blueprint("SCIM", __name__, url_prefix=resources.ROOT)


@blueprint.get("/Users")
@directory
def list_users() -> Response:
    return _users(_args())


@blueprint.post("/Users/.search")
@directory
def search_users() -> Response:
    """List users, with the parameters in the body (RFC 7644, section 3.4.3)."""
    return _users(schemas.search_args(_body()))


@blueprint.post("/Users")
@directory
def create_user() -> Response:
    return _one(users.create(_account(), _body()), USER, 201)


@blueprint.get("/Users/<user_id>")
@directory
def get_user(user_id: str) -> Response:
    return _one(users.get(_account(), user_id), USER)


@blueprint.put("/Users/<user_id>")
@directory
def replace_user(user_id: str) -> Response:
    return _one(users.replace(_account(), user_id, _body(), _preconditions()), USER)


@blueprint.patch("/Users/<user_id>")
@directory
def modify_user(user_id: str) -> Response:
    operations = schemas.operations(_body())
    return _one(users.modify(_account(), user_id, operations, _preconditions()), USER)


@blueprint.delete("/Users/<user_id>")
@directory
def delete_user(user_id: str) -> Response:
    users.delete(_account(), user_id, _preconditions())
    return Response(status=204)


@blueprint.get("/Groups")
@directory
def list_groups() -> Response:
    return _groups(_args())


@blueprint.post("/Groups/.search")
@directory
def search_groups() -> Response:
    """List groups, with the parameters in the body (RFC 7644, section 3.4.3)."""
    return _groups(schemas.search_args(_body()))


@blueprint.post("/Groups")
@directory
def create_group() -> Response:
    return _one(groups.create(_account(), _body()), GROUP, 201)


@blueprint.get("/Groups/<group_id>")
@directory
def get_group(group_id: str) -> Response:
    """Get a group."""
    return _one(groups.get(_account(), group_id, with_members=_shows_members(_args())), GROUP)


@blueprint.put("/Groups/<group_id>")
@directory
def replace_group(group_id: str) -> Response:
    """Replace a group."""
    return _one(groups.replace(_account(), group_id, _body(), _preconditions()), GROUP)


@blueprint.patch("/Groups/<group_id>")
@directory
def modify_group(group_id: str) -> Response:
    """Change a group."""
    operations = schemas.operations(_body())
    return _one(groups.modify(_account(), group_id, operations, _preconditions()), GROUP)


@blueprint.delete("/Groups/<group_id>")
@directory
def delete_group(group_id: str) -> Response:
    """Delete a group."""
    groups.delete(_account(), group_id, _preconditions())
    return Response(status=204)


@blueprint.post("/.search")
@directory
def search_all() -> Response:
    """List users, then groups; a filter may name only what both have."""
    args = schemas.search_args(_body())
    found, user_total = _user_page(args)
    rest = {"start_index": max(args["start_index"] - user_total, 1)}
    found_groups, group_total = _group_page(args | rest | {"count": args["count"] - len(found)})
    listed = _selected(found, args, USER) + _selected(found_groups, args, GROUP)
    return _listed(listed, user_total + group_total, args)


@blueprint.get("/ServiceProviderConfig")
@directory
def get_service_provider_config() -> Response:
    _refuse_filter()
    return _answer(resources.service_provider_config())


@blueprint.get("/ResourceTypes")
@directory
def list_resource_types() -> Response:
    return _answer(_all(resources.resource_types))


@blueprint.get("/ResourceTypes/<resource_type>")
@directory
def get_resource_type(resource_type: str) -> Response:
    return _answer(resources.one_of(resources.resource_types(), resource_type))


@blueprint.get("/Schemas")
@directory
def list_schemas() -> Response:
    return _answer(_all(resources.schema_list))


@blueprint.get("/Schemas/<schema_id>")
@directory
def get_schema(schema_id: str) -> Response:
    return _answer(resources.one_of(resources.schema_list(), schema_id))


def _account() -> str:
    return principal().require_account_id()


def _args() -> JSONObject:
    refuse_repeated(request)
    return schemas.load(schemas.ListArgs(), request.args.to_dict())


def _preconditions() -> Preconditions:
    return Preconditions(request.headers.get("If-Match"), request.headers.get("If-None-Match"))


def _body() -> JSONMapping:
    limit_body(MAX_BODY)
    body = serialization.parse_body(request)
    if not isinstance(body, dict):
        raise Malformed.at("body", msg="Must be a JSON object.", type="type")
    return body


def _refuse_filter() -> None:
    # RFC 7644, section 4.
    if "filter" in request.args:
        raise Forbidden(NO_FILTER)


def _all(list_: Callable[[], Any]) -> JSONObject:
    _refuse_filter()
    items = list_()
    return resources.listing(items, len(items), 1)


def _names(args: JSONMapping, kind: ResourceType) -> tuple[Any, Any]:
    return (
        attributes.parse_names(args["attributes"], kind),
        attributes.parse_names(args["excluded_attributes"], kind),
    )


def _shows_members(args: JSONMapping) -> bool:
    named, excluded = _names(args, GROUP)
    return "members" not in excluded and (
        not named or any(name.partition(".")[0] == "members" for name in named)
    )


def _users(args: JSONMapping) -> Response:
    items, total = _user_page(args)
    return _listed(_selected(items, args, USER), total, args)


def _user_page(args: JSONMapping) -> tuple[list[JSONObject], int]:
    return users.page(_account(), args.get("filter"), args["start_index"], args["count"])


def _groups(args: JSONMapping) -> Response:
    items, total = _group_page(args)
    return _listed(_selected(items, args, GROUP), total, args)


def _group_page(args: JSONMapping) -> tuple[list[JSONObject], int]:
    start, count = args["start_index"], args["count"]
    shows = _shows_members(args)
    return groups.page(_account(), args.get("filter"), start, count, with_members=shows)


def _selected(items: list[JSONObject], args: JSONMapping, kind: ResourceType) -> list[JSONObject]:
    names = _names(args, kind)
    return [attributes.select(item, *names) for item in items]


def _listed(items: list[JSONObject], total: int, args: JSONMapping) -> Response:
    return _answer(resources.listing(items, total, args["start_index"]))


def _one(resource: JSONObject, kind: ResourceType, status: int = 200) -> Response:
    etag, address = resource["meta"].get("version"), resource["meta"]["location"]
    known = request.headers.get("If-None-Match")
    is_get = request.method == "GET"
    if is_get and etag and preconditions.matches(known, etag.removeprefix("W/")):
        return Response(status=304, headers={"ETag": etag})
    response = _answer(attributes.select(resource, *_names(_args(), kind)), status)
    response.headers["Location"] = address
    if etag:
        response.headers["ETag"] = etag
    return response


def _answer(value: JSONMapping, status: int = 200) -> Response:
    return Response(dumps(value), status, content_type=MEDIA_TYPE)


def _error(error: AppError) -> Response:
    response = _answer(errors.body(error), errors.status_of(error))
    response.headers.update(error.headers)
    return response


# Also for paths without a view.
blueprint.record_once(
    lambda state: error_handlers.register_error_page(state.app, resources.ROOT, _error)
)
