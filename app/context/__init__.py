"""Context of a request or job: actor, tenant scope and trigger depth."""
