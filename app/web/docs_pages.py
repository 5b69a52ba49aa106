"""Interactive API documentation: Swagger UI at /docs, ReDoc at /redoc."""

from flask import Blueprint, Response, make_response, render_template

from app.web.access import public

blueprint = Blueprint("apidocs", __name__)

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "data:",  # the icons in both style sheets
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}

# ReDoc inserts two <style> elements: an empty one, filled by script, and one for its scroll bars.
# The policy allows these two by hash, not inline styles in general. The hashes belong to the
# vendored version (static/vendor/README.md). ReDoc's search runs in a worker from a blob.
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
    """Render Swagger UI."""
    return _page("apidocs/swagger.html", POLICY)


@blueprint.get("/redoc")
@public
def redoc() -> Response:
    """Render ReDoc."""
    return _page("apidocs/redoc.html", REDOC_POLICY)


def _page(template: str, policy: dict[str, str]) -> Response:
    response = make_response(render_template(template))
    directives = [f"{name} {value}" for name, value in policy.items()]
    response.headers["Content-Security-Policy"] = "; ".join(directives)
    response.headers["Referrer-Policy"] = "no-referrer"
    return response
