"""The driver: the only package that names every stage."""
