"""What both ends share: the plan, the coding task, entropy models and every constant behind the bytes.

Nothing here may change without a new wire version.
"""
