"""Older versions of kubectl, built from their Go modules."""
