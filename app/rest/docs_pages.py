"""The pages that show /openapi.json to people: Swagger UI at /docs, ReDoc at /redoc."""

from flask import Blueprint, Response, make_response, render_template

from app.rest.access import public

blueprint = Blueprint("apidocs", __name__)

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "data:",  # the icons in both style sheets
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}

# ReDoc makes two <style> elements of its own: an empty one, which it fills by script, and that of
# its scroll bars. Allowed are these two texts, not inline style as such. The hashes go with the
# vendored version (see static/vendor/README.md). Its search runs in a worker started from a blob.
REDOC_POLICY = POLICY | {
    "style-src": (
        "'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
        " 'sha256-QMIg+bpjm3JdElJ388KYke01izlUW0UoNOeKjpMxdgc='"
    ),
    "worker-src": "blob:",
}


@blueprint.get("/docs")
@public
def swagger() -> Response:
    """The API in Swagger UI, from where it can be called."""
    return _page("apidocs/swagger.html", POLICY)


@blueprint.get("/redoc")
@public
def redoc() -> Response:
    """The API in ReDoc, for reading."""
    return _page("apidocs/redoc.html", REDOC_POLICY)


def _page(template: str, policy: dict[str, str]) -> Response:
    response = make_response(render_template(template))
    directives = [f"{name} {value}" for name, value in policy.items()]
    response.headers["Content-Security-Policy"] = "; ".join(directives)
    response.headers["Referrer-Policy"] = "no-referrer"
    return response
