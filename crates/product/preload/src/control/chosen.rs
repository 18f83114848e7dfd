//! The built-in policy and prefetcher: `farshore set PID policy=NAME prefetch=NAME`.
//!
//! The change itself is one store, which faults and evictors see when they ask next; the head of `farshore_policy` says why that is sound.
//! What follows is made under a mutex, [`CHOICE`]:
//!
//! * **Programs that this one starts** get what is in force then. The control thread, and the drainer where swap spaces change, write the
//!   options for them, each from what is in force at that moment. Without the mutex one of the two could write what the other has changed
//!   meanwhile.
//! * **A forked child** begins with what is in force. The thread that forks holds the mutex, so that the child's engine and the options in
//!   its copy agree.
//!
//! Whoever holds the mutex waits for nothing but our allocator. So the control thread does not need the address-space lock, whose holder may wait for
//! our threads to end. Relatives that exist already keep theirs: each process is set by its own number, as with the evictors' pace.

use crate::family;
use crate::ground::runtime::Runtime;
use farshore_config::{Named, Options};
use farshore_net::calls::follow;
use farshore_policy::{BuiltIn, prefetch};
use farshore_sys::lock::Mutex;

static CHOICE: Mutex<()> = Mutex::new(());

/// Nothing changes from here on: before a fork, before our heap is held.
pub fn hold() {
    CHOICE.acquire();
}

/// Ends what [`hold`] began, on both sides of the fork.
pub fn let_go() {
    CHOICE.release();
}

impl Runtime {
    /// What a forked child, or a program that this one starts, begins with: what the user asked for, as it is now.
    pub fn options_now(&self) -> Options {
        let chosen = &self.engine.policy;
        Options {
            policy: Named::new(chosen.evict().name()),
            prefetch: Named::new(chosen.prefetch().name()),
            swap: self.swap_now().0,
            ..self.options.clone()
        }
    }

    /// Programs that are started from here on begin with what is in force now. By the drainer.
    pub fn tell_successors(&self) {
        CHOICE.with(|()| self.write_down());
    }

    fn write_down(&self) {
        follow::renew(&Options { family: family::handed(), ..self.options_now() });
    }

    /// Another policy decides which pages leave. By the control thread.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn choose_policy(&self, name: &Named) -> Result<(), String> {
        let policy = BuiltIn::named(&name.name).ok_or_else(|| format!("policy={name}: there is no such policy"))?;
        CHOICE.with(|()| {
            self.engine.policy.choose(policy);
            self.engine.policy_changed();
            self.write_down();
        });
        Ok(())
    }

    /// Another prefetcher guesses which pages will be wanted. By the control thread.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn choose_prefetcher(&self, name: &Named) -> Result<(), String> {
        let prefetcher =
            prefetch::BuiltIn::named(&name.name).ok_or_else(|| format!("prefetch={name}: there is no such prefetcher"))?;
        CHOICE.with(|()| {
            self.engine.policy.choose_prefetch(prefetcher);
            self.write_down();
        });
        Ok(())
    }
}
