"""Mail domains that accounts have proved to own."""
