"""The name server: brokers tell it what they hold, everybody asks it where a topic lives."""
