"""What matrix products, convolutions and attention share: tiles and their costs."""
