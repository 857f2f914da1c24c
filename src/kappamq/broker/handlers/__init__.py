"""What the broker does for each request. One file for each family of requests; none knows another."""
