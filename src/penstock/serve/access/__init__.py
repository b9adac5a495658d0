"""Who may ask our servers: names in `Host`, pages in browsers, passwords, tokens and API keys."""
