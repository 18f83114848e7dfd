//! Where the tables of an engine have their memory.
//!
//! The tables of a program are on its heap, and end with it. Those of a manager must not: who comes after a manager that was killed reads from them where each page is. So a manager gives
//! its engine a [`Room`], memory that other processes can have too. It decides where each [`Part`] lies, by its number alone: whoever has the memory finds all parts again.
//!
//! A room is asked when a table grows, and never in a fault.

use core::ptr::NonNull;

/// A part of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The words of a GiB of addresses, and what is known of its granules: numbered by address.
    Leaf,
    /// What is known of 512 slots: numbered in the order in which they are made.
    Extent,
    /// The bytes of all stages. There is one such part.
    Stages,
    /// Whose bytes are in each stage. There is one such part.
    Claims,
}

/// Memory for tables.
///
/// # Safety
/// What [`Room::part`] gives is memory of so many bytes, aligned to 128 bytes (to 4096 for leaves and stages), that can be read and written for as long as the process lives, and no other part
/// has any of it. It is zeros where nobody has written.
pub unsafe trait Room: Sync + core::fmt::Debug {
    /// The memory of a part; `None`: there is none to be had. Asked again, it is the same memory, perhaps at another address.
    fn part(&self, part: Part, number: u64, bytes: usize) -> Option<NonNull<u8>>;
}
