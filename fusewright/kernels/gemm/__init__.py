"""Matrix products on tensor cores, and what follows them."""
