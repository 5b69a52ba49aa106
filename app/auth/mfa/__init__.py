"""Second factors: authenticator apps (TOTP), passkeys and recovery codes."""
