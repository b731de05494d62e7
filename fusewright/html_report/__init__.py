"""What is known of a problem, or of many -> one HTML page that needs nothing else."""
