"""What all pages of the console share: guard, forms, lists, links."""
