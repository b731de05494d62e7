"""Tests, in rooms by what they need: see README.md. What they share is tests.support."""
