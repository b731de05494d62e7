"""How fast each side is, and how sure that is."""
