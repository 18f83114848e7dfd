//! What is true about a page: states, frames, slots and waiting, without a
//! single system call.
//!
//! Everything that decides whether a byte can be lost lives here, so that it
//! can run under loom (all interleavings), miri (undefined behaviour) and the
//! simulator (seeded schedules) as well as in the shipped library:
//!
//! * [`page`] names pages, granules and ranges;
//! * [`word`] is the page word: one 64-bit word a page, one order of changes;
//! * [`table`] finds the word of an address, [`huge`] says what is known of huge pages there;
//! * [`room`] is where the tables of a manager lie, so that they outlive it;
//! * [`frames`] counts the frames of the memory limit in three levels;
//! * [`slots`] hands out places in swap space, side by side;
//! * [`delegation`] lets one core ask another to work on what the other core owns;
//! * [`pooled`] says where a pool in RAM has the page of a slot;
//! * [`wait`] lets a thread sleep until another has moved a page on;
//! * [`gate`] keeps threads out while a process forks;
//! * [`halt`] has threads stand still while a dormant process wakes;
//! * [`seams`] are the traits of what lies around the engine: kernel, swap space, policy, clock, futex;
//! * [`joint`] is the interface between the library and a scheduler of unithreads;
//! * [`roll`] waits until threads of Farshore's own have begun;
//! * [`spin`] is the lock of threads that are not in the fault path;
//! * [`limits`] holds every constant, and the relations between them;
//! * [`ablated`] says which mechanisms an experiment leaves out;
//! * [`canary`] plants bugs that tests must find;
//! * `recorder` notes which cache lines a thread writes, for a test;
//! * [`sync`] is the one module that atomics come from (std or loom).
//!
//! Nothing in the fault path of this crate allocates or takes a lock, so it may
//! run inside a signal handler. The crate is `no_std` in that sense: `alloc` is
//! used only when tables are built.
#![cfg_attr(not(any(test, loom)), no_std)]

extern crate alloc;

pub mod ablated;
pub mod canary;
pub mod copies;
pub mod delegation;
pub mod frames;
pub mod gate;
pub mod halt;
pub mod huge;
pub mod joint;
pub mod limits;
pub mod order;
pub mod page;
pub mod pooled;
#[cfg(feature = "recorder")]
pub mod recorder;
pub mod roll;
pub mod room;
#[cfg(not(loom))]
pub mod seams;
pub mod slots;
pub mod spin;
pub mod sync;
#[cfg(not(loom))]
pub mod table;
pub mod wait;
pub mod word;
