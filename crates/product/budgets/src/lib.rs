//! Budgets that several programs of one user have together (`farshore run --budget jobs=8G`): the list of them ([`list`]), how a program
//! gets into it ([`join`]), how it looks there ([`seat`]), and the law by which shares move ([`law`]).
//!
//! A *family* is a program and the processes that came of it. It has one limit, which one of its processes sets. A *budget* bounds the
//! limits of several families.
//!
//! # The list
//!
//! One file for each user, in memory (`/dev/shm`), with a line for each family that is in a budget. The line says in which one, and:
//!
//! ```text
//!  size    what the budget has; the same in all of its lines
//!  least   the family is never left with less        ≤ limit
//!  limit   what the family may have                  ≤ held
//!  held    what it has, or may have: a limit that was lowered is reached later, as evictors get the pages out
//!  wants   what it would take if all were free
//!  need    how much time it loses to faults, by the time that it runs
//! ```
//!
//! There is no record of a budget itself: it is there as long as a line names it. So nothing is left of one whose programs have ended.
//!
//! # Who is alive
//!
//! A line belongs to the family that has locked the byte of its number in the file. The lock is that of an open file description, which
//! `farshore run` opens and all processes of the family inherit. The kernel takes it away with the last of them, whatever ended that one:
//! from then on the line counts no more. Nobody has to clear it.
//!
//! # What holds
//!
//! 1. **The held of all families of a budget are never more than its size**, except after `farshore set budget=` has lowered it, or
//!    where a family has more processes than its limit has room for. Then no family grows until it holds again.
//! 2. Lines are read and written by the process that has the *hold*: a lock of another byte, which belongs to one process and ends with
//!    it. A family writes its own line alone, but for the size, which is written to all.
//! 3. **A family raises `held` in its line before its limit, and lowers it after its pages have left.** It does both while it has the
//!    hold, and only there it looks what its limit is and who decides it: no process that was stopped in between can act on what it read.
//! 4. No family waits for another: a family that does not get the hold leaves its limit as it is, and looks again.
//! 5. **Nothing in the list is believed.** Every process of the user can write it. What is read is bounded, so a list of noise makes
//!    a limit wrong, between the family's least and what it says itself is its most, and does no other harm: no memory is mapped from it.
//!
//! The file is the user's alone (mode 600, no links followed). If somebody else has taken its name, another one is used ([`join`]).
#![forbid(unsafe_code)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod join;
pub mod law;
pub mod list;
pub mod seat;
