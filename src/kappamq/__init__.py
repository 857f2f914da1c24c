"""KappaMQ: a durable message queue that speaks RocketMQ's protocol, keeps its files, and makes every topic a Spark table."""

__version__ = "0.1.0"
