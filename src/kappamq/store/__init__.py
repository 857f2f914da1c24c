"""The durable log: commit log, consume queues and key index in RocketMQ's files. Synchronous, without network."""
