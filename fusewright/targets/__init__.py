"""What a machine is: instructions, limits and rates of its processor or GPU."""
