"""Graph -> Graph: algebra, and what a target decides."""
