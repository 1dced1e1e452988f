"""The compiled backend for CPUs."""
