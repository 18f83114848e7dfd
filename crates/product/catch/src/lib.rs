//! How system calls of a program are caught, and how it goes on afterwards: no memory of calls, no table, no engine.
//!
//! ```text
//!  a patched `syscall` of libc ([`patch`]) ─▶ stub ([`stubs`]) ─┐
//!                                                               ├─▶ [`entry`] ─▶ `farshore_dispatch`, of whoever links this crate
//!  any other `syscall` ──SIGSYS (Syscall User Dispatch)─────────┘
//! ```
//!
//! # Hooks
//!
//! The crate calls up by name. Whoever links it defines these functions (`extern "C"`, unmangled), as `libfarshore.so` and the test
//! rig `net-rig` do. Their contracts stand where they are declared:
//!
//! * `entry.rs`: `farshore_dispatch`, `farshore_make_writable`;
//! * `entry/clone.rs`: `farshore_before_first_clone`, `farshore_before_clone`, `farshore_parent_after_clone`,
//!   `farshore_child_started`, `farshore_take_stack`, `farshore_give_stack`, `farshore_read_program`;
//! * `entry/edge.rs`: `farshore_on_call_stack`, `farshore_deliver`;
//! * `entry/sigsys.rs`: `farshore_before_sigreturn`, `farshore_hold`, `farshore_let_go`, `farshore_bad_frame`,
//!   `farshore_foreign_sigsys`, `farshore_step_over`, `farshore_begin_thread`.
//!
//! Names rather than function pointers: the entry is assembly, and the linker refuses a library in which a hook is missing.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod entry;
pub mod patch;
pub mod stubs;

/// The unit tests catch nothing: what the linker wants ends them.
#[cfg(test)]
mod unhooked {
    macro_rules! unhooked {
        ($($name:ident)*) => {
            $(
                #[unsafe(no_mangle)]
                extern "C" fn $name() {
                    std::process::abort();
                }
            )*
        };
    }

    unhooked! {
        farshore_dispatch farshore_make_writable
        farshore_before_first_clone farshore_before_clone farshore_parent_after_clone farshore_child_started
        farshore_take_stack farshore_give_stack farshore_read_program
        farshore_on_call_stack farshore_deliver
        farshore_before_sigreturn farshore_hold farshore_let_go farshore_bad_frame farshore_foreign_sigsys farshore_step_over
        farshore_begin_thread
    }
}
