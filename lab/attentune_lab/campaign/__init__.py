"""Campaigns with equal budgets, and simulations of the statistics."""
