"""Extensions: code of the operator's own."""

from __future__ import annotations

from app.extensions import after, before, field_types, jobs, periodic, steps
from app.web.feature import Feature

FEATURE = Feature(jobs=(jobs,), subscribers=(after, before, field_types, jobs, periodic, steps))
