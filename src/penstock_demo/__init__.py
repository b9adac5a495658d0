"""`penstock demo`: a shop under load, its changes followed to Kafka, and the proof that none is missing."""
