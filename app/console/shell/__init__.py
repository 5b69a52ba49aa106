"""What all console pages share: guard, forms, lists, links."""
