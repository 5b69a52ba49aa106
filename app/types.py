"""Types that every room shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSONObject = dict[str, Any]  # decoded, or to be encoded
JSONMapping = Mapping[str, Any]  # the same, only read
