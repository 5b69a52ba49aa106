"""Signing in with providers, by OAuth and SAML; directories, by SCIM; setup links."""

from __future__ import annotations

from app.sso import (
    account_linking,
    config_routes,
    discovery_routes,
    jobs,
    overview_routes,
    responses,
    roles,
    routes,
    service,
    setup_link_routes,
)
from app.sso.oauth import documents
from app.sso.saml import keys, metadata_refresh, sessions
from app.sso.saml import routes as saml_routes
from app.sso.scim import roles as scim_roles
from app.sso.scim import routes as scim_routes
from app.sso.scim import token_routes
from app.web.feature import Feature

FEATURE = Feature(
    api=(
        token_routes.blueprint,
        routes.blueprint,
        routes.browsers,
        config_routes.blueprint,
        config_routes.own,
    ),
    pages=(scim_routes.blueprint,),
    routes=(
        overview_routes,
        saml_routes,
        setup_link_routes,
        discovery_routes,
    ),
    jobs=(jobs, metadata_refresh),
    subscribers=(account_linking, documents, roles, keys, sessions, scim_roles, service),
    init=(responses.init_app,),
)
