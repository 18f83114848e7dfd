//! Introspection of guests: what a virtual machine's own page tables say of its memory, read from outside, and a prefetcher that goes by it.
//!
//! A manager sees a guest's *physical* addresses: which page of its memory was touched. A program in the guest goes through *virtual* ones, and after a while neighbours there lie anywhere in physical
//! memory. So the next page of a run is found only by who can tell the one from the other (Flexible Swapping §4.2, §4.3, §6.6).
//!
//! ```text
//!  a page of the guest's memory faulted        which pages of the guest's memory should come
//!        │                                                   ▲
//!        ▼ reverse, made sure by paging                      │ paging
//!  a virtual page of an address space ──▶ linear ──▶ the next virtual pages
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`paging`] | walks the page tables of x86-64 |
//! | [`layout`] | which guest-physical address is which byte of the guest's memory |
//! | [`registers`] | what processors run, as QEMU tells it |
//! | [`reverse`] | which virtual page has a physical one, as far as was seen |
//! | [`linear`] | runs of faults, and what comes next |
//! | [`guest`] | all of it together |
//!
//! # Nothing here is believed
//!
//! All that is read was written by the guest, or while the guest changes it. What comes of it is a *wish* that a page come, which changes no byte. So tables that are garbage, loop, or lead out of memory cost a
//! wrong guess and a bounded number of reads. Nothing here makes a system call, knows the engine, or allocates more than it says.
#![forbid(unsafe_code)]

pub mod guest;
pub mod layout;
pub mod linear;
#[cfg(test)]
mod made;
pub mod paging;
pub mod registers;
pub mod reverse;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
