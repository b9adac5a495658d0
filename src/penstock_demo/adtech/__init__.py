"""`penstock demo adtech`: tracking events by HTTP become persons, segments, counts, deliveries; all is checked."""
