"""Plug-ins for fineshards."""
