"""The web layer: WSGI application, blueprints, schemas, access marks, paging, errors, rate limits.

A view needs a signed-in caller unless it is marked otherwise, and accepts only the query parameters
it declares. `auth.guard` and the API description read the same marks.
"""

PREFIX = "/api/v1"
VERSION = "0.3.0"
"""The release."""
API_VERSION = "0.1.0"
"""The version of the API, which a release need not change."""
