"""`/records/{collection}/aggregate`: aggregates of records."""

from __future__ import annotations

import marshmallow as ma
from flask import Response, request

from app import web
from app.auth.guard import optimistic, principal
from app.records.read import aggregate
from app.records.routes import stale_reads
from app.records.routes.records import search_text
from app.records.store import limit_size
from app.types import JSONObject
from app.web import fields
from app.web.access import anonymous
from app.web.blueprint import Blueprint
from app.web.fields import doc
from app.web.paging import LARGEST_SKIP
from app.web.schemas import Schema, View
from app.web.serialization import json_response

MAX_RESULTS = 1000

blueprint = Blueprint(
    "Aggregates",
    __name__,
    url_prefix=f"{web.PREFIX}/records",
    description="Counts, sums, averages and extremes of the records of a collection.",
)


class AggregateArgs(Schema):
    """What to compute. Every other parameter is `<field>=<value>`, repeated for OR."""

    class Meta:
        """Other parameters are fields of the collection."""

        unknown = ma.EXCLUDE

    names_fields = True
    functions = fields.Text(
        longest=8000,
        metadata={
            "description": "Comma-separated: `count()`, `count(f)` of values that are not null,"
            " `sum(f)`, `avg(f)`, `min(f)`, `max(f)`.",
            "example": "count(),sum(price)",
            fields.REQUIRED_BY_SERVICE: True,
        },
    )
    group_by = fields.Text(
        **doc(
            "Comma-separated fields; null is a group, too. Dotted names follow references, such"
            " as `customer.name`: null where the caller may not view the record."
        )
    )
    filter = fields.Text(longest=2**30, **doc("Which records; as in the list of records."))
    search = search_text()
    having = fields.Text(
        longest=2**30,
        **doc(
            "Which groups: an expression of the rule language over the names of the"
            " results, such as `count > 5 && sum_price < 100`; `sum(price)` is `sum_price`."
        ),
    )
    skip = fields.Integer(0, LARGEST_SKIP, load_default=0, **doc("Groups to skip."))
    limit = fields.Integer(
        1, MAX_RESULTS, load_default=MAX_RESULTS, **doc("How many groups to return.")
    )


class Aggregates(View):
    """The groups, ordered by the fields they are grouped by, and their number."""

    results = ma.fields.List(
        ma.fields.Dict(), **doc("`count`, `count_f`, `sum_f`, ... and the fields grouped by.")
    )
    total_groups = ma.fields.Integer()


EXAMPLE = {"results": [{"status": "open", "count": 2, "sum_price": 30.5}], "total_groups": 1}


@blueprint.route("/<collection>/aggregate", methods=["GET"])
@blueprint.arguments(AggregateArgs, location="query", unknown=ma.EXCLUDE)
@blueprint.response(200, Aggregates, example=EXAMPLE)
@blueprint.fails(413)
@blueprint.doc(parameters=[stale_reads.HEADER])
@optimistic
@stale_reads.may_be_stale
@anonymous(operator="records")
def aggregate_records(args: JSONObject, collection: str) -> Response:
    """Aggregate records.

    Covers the records that the caller may list, and fields that the caller sees unmasked. Sums are
    exact decimal sums; averages are rounded to the nearest number. Without values, sum, average,
    minimum and maximum are null. Groups are ordered by the fields they are grouped by; without
    `group_by`, all records form one group.
    """
    parameters = request.args.to_dict(flat=False)
    skip, limit = args["skip"], args["limit"]
    result = aggregate.aggregate(collection, parameters, skip=skip, limit=limit, by=principal())
    return json_response({**result, "results": limit_size(result["results"])})
