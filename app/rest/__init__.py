"""The edge of the API: blueprints, schemas, who may call a view, paging, and answers in JSON.

A view needs a signed-in caller unless it is marked otherwise, and takes only the query parameters
that it declares. The marks are read by `auth.guard` and by the API description alike.
"""

PREFIX = "/api/v1"
VERSION = "0.2.0"
