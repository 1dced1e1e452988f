"""The matrix mechanism (DP-FTRL): correlated noise, participation, and what they cost."""
