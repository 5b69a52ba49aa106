"""The product's own face: its name, logo, colour, and the pages that mailed links lead to."""
