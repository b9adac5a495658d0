"""`penstock demo adtech`: tracking events over HTTP become persons, segments, counts, deliveries; all is checked."""
