"""Sockets around `wire`, on asyncio. Knows frames and limits, no rule of a broker or client."""
