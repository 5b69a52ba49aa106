"""Sign-in with OAuth 2.0 and OpenID Connect."""
