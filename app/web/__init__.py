"""The web layer: WSGI application, blueprints, schemas, access, paging, errors, rate limits.

A view needs a signed-in caller unless it declares another access, and accepts only the query
parameters it declares. `auth.guard` and the API description read the same declaration.
"""

PREFIX = "/api/v1"
EXTENSIONS = f"{PREFIX}/x"
"""Below it are the endpoints of extensions."""
VERSION = "0.3.0"
"""The release."""
API_VERSION = "0.1.0"
"""The version of the API, which a release need not change."""
