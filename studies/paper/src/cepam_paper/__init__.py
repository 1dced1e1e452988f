"""The paper redone: one function per table, figure and bound, and the page that says which claims hold."""
