"""A score becomes a decision."""
