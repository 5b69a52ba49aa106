"""`/users/{id}/export`: what is held of a person."""

from __future__ import annotations

import marshmallow as ma
from flask import Response, stream_with_context

from app.accounts.types import Query
from app.accounts.user_routes import blueprint
from app.audit.security_log import reads
from app.auth.guard import principal
from app.auth.principal import Principal
from app.portability import person
from app.web import fields
from app.web.access import signed_in
from app.web.fields import doc
from app.web.schemas import BYTES, Schema, View, example

FORMATS = {"json": "application/json", "zip": "application/zip"}


class PersonArgs(Schema):
    format = ma.fields.String(
        load_default="json",
        validate=ma.validate.OneOf(list(FORMATS)),
        **doc("`json`, or `zip` with JSON lines."),
    )


@example(
    user={"id": "019a9f00-0000-7000-8000-000000000001", "email": "bob@acme.example"},
    groups=["agents"],
    records=[
        {
            "collection": "posts",
            "id": "019a9f00-0000-7000-8000-000000000002",
            "relations": ["created_by"],
            "record": {"title": "Hello"},
        }
    ],
    hidden_records={"reviews": 2},
)
class PersonView(View):
    """What is held of a person, as far as the caller may see it."""

    optional = ("rows",)

    exported_at = fields.Timestamp()
    account = ma.fields.Dict()
    user = ma.fields.Dict(**doc("The profile, with `attributes` and `role`."))
    groups = ma.fields.List(ma.fields.String())
    sessions = ma.fields.List(ma.fields.Dict())
    second_factors = ma.fields.List(ma.fields.Dict())
    api_keys = ma.fields.List(ma.fields.Dict())
    identities = ma.fields.List(ma.fields.Dict(), **doc("At identity providers."))
    mailed_links = ma.fields.List(ma.fields.Dict(), **doc("Links in mails that are still valid."))
    invitations = ma.fields.List(ma.fields.Dict())
    records = ma.fields.List(
        ma.fields.Dict(),
        **doc(
            "`collection`, `id`, `relations` (the fields that name the person), and `record`, null"
            " for admins who may not view it."
        ),
    )
    files = ma.fields.List(ma.fields.Dict(), **doc("That the person uploaded."))
    audit_log = ma.fields.List(
        ma.fields.Dict(), **doc("Changes that they made, then changes of their user.")
    )
    security_log = ma.fields.List(ma.fields.Dict(), **doc("Their events, and those about them."))
    rows = ma.fields.List(
        ma.fields.Dict(),
        **doc("Rows of extensions that refer to the person: `table`, `relations` and `row`."),
    )
    hidden_records = ma.fields.Dict(
        **doc("How many records by collection name you that you may not view.")
    )


@blueprint.route("/<uuid:user_id>/export", methods=["GET"])
@blueprint.arguments(PersonArgs, location="query")
@blueprint.response(200, PersonView)
@blueprint.alt_response(
    200, schema=BYTES, content_type="application/zip", example="(bytes)", description="An archive."
)
@blueprint.fails(403)
@signed_in
def export_user(args: Query, user_id: str) -> Response:
    """Export what is held of a person.

    Of yourself, and for admins of users of their account: the profile, sessions, second factors and
    API keys without secrets, records that name the person or that they made, files, and entries of
    the logs. Records and personal data are shown as you may see them. The answer is streamed.
    """
    return exported(user_id, args["format"], by=principal())


def exported(user_id: str, format: str, *, by: Principal) -> Response:
    """The response with what is held of a person. Raises as `person.of`."""
    found = person.of(user_id, by=by)
    text = found.zip() if format == "zip" else found.json()
    return Response(
        stream_with_context(reads.before_each(text)),
        headers={"Content-Disposition": f"attachment; filename=person-{found.id}.{format}"},
        mimetype=FORMATS[format],
        direct_passthrough=True,
    )
