"""Whether a description is valid OpenAPI 3.1."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from attrs import evolve
from openapi_spec_validator import OpenAPIV31SpecValidator

# Else it takes whichever library there is, with other messages.
os.environ["OPENAPI_SPEC_VALIDATOR_SCHEMA_VALIDATOR_BACKEND"] = "jsonschema"


def check_valid(spec: Mapping[str, Any], beyond: Mapping[str, Any] | None = None) -> None:
    """Fail with the first thing that is wrong with a description, or with its paths beyond those
    of another that is known to be valid.
    """
    known = beyond["paths"] if beyond else {}
    paths = {path: item for path, item in spec["paths"].items() if known.get(path) != item}
    _Validator({**spec, "paths": paths}).validate()


class _Validator(OpenAPIV31SpecValidator):
    """The library's, which would read its own schema anew at each reference: twice as long."""

    _given = OpenAPIV31SpecValidator.schema_validator
    _read = evolve(_given._resolver, registry=_given._resolver._registry.crawl())
    schema_validator = _given.evolve(_resolver=_read)
