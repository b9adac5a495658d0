"""What commands tell of themselves: meters, metrics over HTTP, graphs, the console page, dashboards and alerts."""
