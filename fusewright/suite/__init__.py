"""A folder of problems -> a row for each, totals, a page."""
