"""The wire format behind all backends: the plan, the coding task, entropy models and every shared constant.

Change nothing here without a new wire version.
"""
