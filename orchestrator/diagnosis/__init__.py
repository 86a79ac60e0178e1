"""From what the nodes said to one true verdict: pure functions over events and texts."""
