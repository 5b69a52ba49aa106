"""Sign-in with SAML 2.0."""
