"""Values that every layer shares: messages, records, offsets, routes, filters. No I/O, no clock."""
