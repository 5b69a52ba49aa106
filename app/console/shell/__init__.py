"""The parts that all console pages share: guard, forms, lists, links."""
