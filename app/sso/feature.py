"""Signing in with providers, by OAuth and SAML; directories, by SCIM; setup links."""

from __future__ import annotations

from app.sso import account_linking, jobs, roles, service, setup_links
from app.sso.oauth import documents
from app.sso.saml import keys, metadata_refresh, sessions
from app.sso.scim import roles as scim_roles
from app.web.feature import Feature, Routes


def routes() -> Routes:
    """Import the routes."""
    from app.sso import config_routes, discovery_routes, responses, setup_link_routes
    from app.sso import routes as sign_in
    from app.sso.saml import routes as saml
    from app.sso.scim import routes as scim
    from app.sso.scim import token_routes

    return Routes(
        api=(
            token_routes.blueprint,
            sign_in.blueprint,
            sign_in.browsers,
            config_routes.blueprint,
            config_routes.own,
        ),
        pages=(scim.blueprint,),
        modules=(saml, setup_link_routes, discovery_routes),
        init=(responses.init_app,),
    )


FEATURE = Feature(
    routes=routes,
    jobs=(jobs, metadata_refresh, setup_links),
    subscribers=(account_linking, documents, roles, keys, sessions, scim_roles, service),
)
