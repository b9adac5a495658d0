"""`penstock demo`: a shop under load, whose changes go to Kafka, and the proof that none is missing."""
