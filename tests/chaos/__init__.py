"""Workers, servers and faults as in bad weather, and a checker that reads what happened: ``python -m tests.chaos``."""
