"""What was done and why -> the decision record, the JSON report, lines on a terminal."""
