"""Pipeline jobs. Each module has a pure `build` over data frames and a thin `run` that reads, builds and writes."""
