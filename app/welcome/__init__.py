"""Pages for end users, in the product's brand: what mails lead to, sign-in, the own profile."""
