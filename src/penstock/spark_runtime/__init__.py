"""Spark as Penstock starts and uses it: sessions, settings, Python processes, plans, and what Spark keeps private."""
