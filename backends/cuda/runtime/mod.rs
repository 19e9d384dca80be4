//! The driver: devices, memory, queues, events, launches. Nothing here knows an operation or a kernel.

pub(crate) mod clocks;
pub(crate) mod devices;
pub(crate) mod event;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod pdl;
pub(crate) mod queue;
pub(crate) mod staging;
