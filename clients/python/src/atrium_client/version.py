"""The version of the API that the client was built for."""

VERSION = "0.3.0"
