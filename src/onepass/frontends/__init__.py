"""Front ends: from a user's model to a graph."""
