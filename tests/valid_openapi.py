"""Whether a description is valid OpenAPI 3.1."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from attrs import evolve
from openapi_spec_validator import OpenAPIV31SpecValidator

# Else it takes whichever library there is, with other messages.
os.environ["OPENAPI_SPEC_VALIDATOR_SCHEMA_VALIDATOR_BACKEND"] = "jsonschema"


def check_valid(spec: Mapping[str, Any]) -> None:
    """Fail with the first thing that is wrong with a description."""
    _Validator(dict(spec)).validate()


class _Validator(OpenAPIV31SpecValidator):
    """The library's, which would read its own schema anew at each reference: twice as long."""

    _given = OpenAPIV31SpecValidator.schema_validator
    _read = evolve(_given._resolver, registry=_given._resolver._registry.crawl())
    schema_validator = _given.evolve(_resolver=_read)
