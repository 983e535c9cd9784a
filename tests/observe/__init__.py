"""The view, whatever it is a view of."""
