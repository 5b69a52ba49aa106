"""Extensions: code of the operator's own."""

from __future__ import annotations

from app.web.feature import Feature

FEATURE = Feature()
