"""Anyone's candidates for a folder of problems -> who is right, and who is fastest."""
