"""Emitted text -> running code."""
