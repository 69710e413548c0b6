"""Other engines on the same work: each in a process of its own, one computing at a time."""
