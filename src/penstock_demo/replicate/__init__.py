"""`penstock demo replicate`: the shop's tables are kept equal to a copy, and both sides are compared."""
