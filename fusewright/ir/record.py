"""Attributes of several named values: frozen dataclasses that the IR can tell apart and print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Record:
    """What an attribute is that has several values, each with a name and a type.

    Nodes with equal records are one node, where 0.0 and -0.0, or 1 and True, are not equal.
    """

    def values(self) -> dict[str, Any]:
        """The fields by name, in their order."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def told(self) -> dict[str, Any]:
        """The fields that are not as by default, for people."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not f.default}

    def words(self) -> Mapping[str, Any]:
        """What the operator's text in the table may name: the fields, or what they come to."""
        return self.values()
