"""Limits of meters in requests."""

from __future__ import annotations

import marshmallow as ma

from app.web import fields
from app.web.schemas import Schema

HIGHEST = 10**15


class LimitsBody(Schema):
    """The limits of a meter: `hard` refuses, `soft` sends mails. Null or absent: no limit."""

    soft = fields.Integer(0, HIGHEST, allow_none=True)
    hard = fields.Integer(0, HIGHEST, allow_none=True)


class ChangedQuotas(Schema):
    """The limits to set, by meter; null removes them: those of the plan or the service apply."""

    requests = ma.fields.Nested(LimitsBody, allow_none=True)
    deliveries = ma.fields.Nested(LimitsBody, allow_none=True)
    workflow_steps = ma.fields.Nested(LimitsBody, allow_none=True)
    mails = ma.fields.Nested(LimitsBody, allow_none=True)
    records = ma.fields.Nested(LimitsBody, allow_none=True)
    row_bytes = ma.fields.Nested(LimitsBody, allow_none=True)
    file_bytes = ma.fields.Nested(LimitsBody, allow_none=True)
