"""Where frames come from: change logs, topics, HTTP."""
