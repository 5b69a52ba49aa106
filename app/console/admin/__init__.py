"""Pages of an account's and the service's administration."""
