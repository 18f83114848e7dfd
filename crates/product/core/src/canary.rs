//! Canaries: bugs that are planted on purpose, to show that the simulator and the fuzzer would find one.
//!
//! Without the feature `canaries`, [`is_planted`] is `false` for the compiler, and no planted bug is in the program. With the
//! feature, one build contains all of them, and each thread plants at most one ([`plant`]).

/// Makes the list of canaries, so that none is left out of [`Canary::ALL`].
macro_rules! canaries {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A planted bug.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Canary {
            $($(#[$doc])* $name,)*
        }

        impl Canary {
            /// All canaries, with their names.
            pub const ALL: &'static [(&'static str, Canary)] = &[$(($text, Canary::$name),)*];
        }
    };
}

canaries! {
    // Broken rules of the engine. The simulator must notice them (crates/testing/sim/tests/canaries.rs).
    /// A fault does not check whether its granule was write-protected meanwhile.
    Epoch = "epoch",
    /// A stage is retired before its write is acknowledged.
    Written = "written",
    /// A stage that a rescuer reads is used again.
    Held = "held",
    /// A frame is not given back.
    Frame = "frame",
    /// A slot is not given back.
    Slot = "slot",
    /// The bytes that were read are not checked.
    Checksum = "checksum",
    /// Some waiters are not woken.
    Wake = "wake",
    /// Memory that cannot be read is forgotten.
    Unreadable = "unreadable",
    /// A moved page counts as protected.
    Moved = "moved",
    /// A part of a range stays hidden.
    Stays = "stays",
    /// A call that fails is taken for one that changed nothing.
    Refused = "refused",
    /// Memory that is being moved is not left alone.
    Moving = "moving",
    /// A late fault reaches into a granule's next life.
    Rebirth = "rebirth",
    /// Slots that a forked child may read are given out again.
    Share = "share",
    /// A fork does not wait for evictors.
    Rest = "rest",
    /// A space is taken away while it still holds something.
    Drain = "drain",
    /// The room of an extent that is in use is given back.
    Trim = "trim",
    /// A fault that is put aside and owns no page stays inside the gate.
    Aside = "aside",
    /// A read that was cut off is taken for a whole one.
    Part = "part",
    /// A page that cannot be read through the program's own mapping is not read the other way.
    Untold = "untold",
    /// Pages that are taken over have no frames.
    Stock = "stock",
    /// Pages leave a huge page that the kernel has not split.
    Whole = "whole",
    /// A fault looks for the pages that it took beside its own where a memory call may have hidden them.
    Hidden = "hidden",
    /// An evictor does not say to which stage a page leaves before it unmaps it.
    Left = "left",
    /// The word of a page that was mapped again does not say so before the kernel's note about it goes.
    Noted = "noted",
    // Broken rules about memory that two threads share. The loom models must notice them (crates/product/core/tests).
    /// Slots that are being reserved while their space is closed are still given out.
    Closed = "closed",
    /// Work done for a core that has stopped waiting is not undone.
    Delegation = "delegation",
    // Wrong answers to bytes from outside. The fuzzer must notice them; each has the name of its fuzz target
    // (crates/testing/fuzz).
    /// A line of the control socket.
    Control = "control",
    /// A name with parameters.
    Names = "names",
    /// What a client sends to a memory node.
    Node = "node",
    /// Options as JSON.
    Options = "options",
    /// A size.
    Sizes = "sizes",
    /// Statistics as JSON.
    Stats = "stats",
    /// A swap spec.
    Swap = "swap",
    /// Options from a file.
    Toml = "toml",
    /// A page word.
    Word = "word",
}

/// Whether this bug is planted in the calling thread.
#[cfg(not(feature = "canaries"))]
#[inline(always)]
pub const fn is_planted(_canary: Canary) -> bool {
    false
}

#[cfg(feature = "canaries")]
pub use planted::{is_planted, plant};

#[cfg(feature = "canaries")]
mod planted {
    use super::Canary;
    use core::cell::Cell;

    extern crate std;

    std::thread_local! {
        static PLANTED: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    /// Whether this bug is planted in the calling thread.
    #[inline]
    pub fn is_planted(canary: Canary) -> bool {
        PLANTED.get() == Some(canary)
    }

    /// Plants this bug in the calling thread, and removes the one planted before.
    pub fn plant(canary: Option<Canary>) {
        PLANTED.set(canary);
    }
}
