"""Files, pages and prefetching that several packages use.

Internal: nothing here is meant for users.
"""
