//! The C interface: `include/farshore_uthread.h`.
