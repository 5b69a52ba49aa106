"""Sign-in by OAuth 2.0 and SAML 2.0."""
