"""Running sums and products along a row."""
