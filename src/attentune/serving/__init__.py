"""What every server of this package has: `guard` and `timeouts` protect it, `server` runs it."""
