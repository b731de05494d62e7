"""What a candidate is asked, what the reference answers, and how both are compared."""
