"""What earlier versions wrote, kept as they left it."""
