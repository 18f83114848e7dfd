//! `farshore stat`, `set`, `top` and `metrics` for a client's memory: the control socket that programs have ([`farshore_socket`]), of this process.
//!
//! Requests are answered by a thread that has the listener and no other descriptor. What it reads, it reads by path.

use std::sync::atomic::AtomicBool;
use std::thread;

use farshore_config::control::{Change, Set, Setting, Translated};
use farshore_config::{Named, Size, stats};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::Clock as _;
use farshore_policy::{BuiltIn, prefetch};
use farshore_socket::{Target, counters};
use farshore_sys::clock;

use crate::host::{Host, no_thread};
use crate::process;
use crate::tap::Way;

/// How faults come, in the words of `--fault`: by messages.
const FAULTS: &str = "poll";

/// A client, as a user asks for it.
struct Client {
    host: &'static Host,
    pid: i32,
    name: String,
    started_ns: u64,
}

/// Listens, and answers for as long as this process lives.
///
/// # Errors
/// One line: there is no socket to be had, or no thread. The client is served all the same.
pub fn start(host: &'static Host, pid: i32) -> Result<(), String> {
    let listener = farshore_socket::listen()?;
    let client: &'static Client =
        Box::leak(Box::new(Client { host, pid, name: process::name(pid), started_ns: host.engine.clock.now_ns() }));
    let serve = move || {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let number = listener.raw();
        farshore_socket::leave_table(number);
        farshore_socket::serve(number, client, &NEVER);
    };
    thread::Builder::new().name("farshore-ctl".into()).spawn(serve).map(drop).map_err(no_thread)
}

impl Client {
    /// Follows runs of faults in the guest's addresses, or in its memory's order, in place of the engine's own prefetcher.
    fn follow(&self, way: Way) -> Result<Set, String> {
        let engine = &self.host.engine;
        counters::check_prefetcher(engine, &Named::new(way.name()))?;
        if way == Way::Guest && !self.host.tap.has_monitor() {
            return Err("prefetch=guest: what this guest's processors run cannot be asked: start it with 'farshore vm run --prefetch guest'".into());
        }
        self.host.tap.set_way(way);
        engine.policy.choose_prefetch(prefetch::BuiltIn::None);
        Ok(Set::Done)
    }
}

impl Target for Client {
    fn stats(&self) -> stats::Stats {
        let engine = &self.host.engine;
        let (autopilot, budget) = self.host.choice.stats(engine);
        let beside = process::resident_bytes().saturating_sub(engine.sizes().stages * PAGE_SIZE as u64);
        let told = stats::Stats {
            program: self.name.clone(),
            fault_mode: FAULTS.into(),
            overhead_bytes: beside,
            overhead_bytes_peak: beside,
            autopilot,
            budget,
            processor_ns: process::processor_ns(self.pid) + clock::of_process(),
            ..counters::of(engine, self.started_ns)
        };
        let prefetcher = match self.host.tap.way() {
            Way::Off => told.prefetcher.clone(),
            way => way.name().into(),
        };
        stats::Stats { prefetcher, guest: self.host.tap.stats(), thrashing: farshore_config::advice::of(&told), ..told }
    }

    fn set(&self, key: &str, value: &str) -> Result<Set, String> {
        let engine = &self.host.engine;
        if let Some(way) = Way::named(value).filter(|_| key == "prefetch") {
            return self.follow(way);
        }
        let setting =
            Setting::read(key, value).map_err(|why| if key == "prefetch" { format!("{why}, or guest") } else { why })?;
        match setting {
            Setting::Memory(size) => {
                // Not while the memory is given back, when nothing may have to leave for what comes.
                let _alone = self.host.in_one_hand();
                self.host.choice.end_at(engine, size.bytes()).map_err(|least| {
                    format!("memory={value} is below what this manager can shrink to; give at least {}", Size(least))
                })?;
                self.host.state.inspect(|state| state.set_limit(size.bytes()));
            }
            Setting::Policy(name) => {
                let policy = BuiltIn::named(&name.name).ok_or_else(|| format!("policy={name}: there is no such policy"))?;
                engine.policy.choose(policy);
                engine.policy_changed();
            }
            Setting::Prefetch(name) => {
                counters::check_prefetcher(engine, &name)?;
                let prefetcher = prefetch::BuiltIn::named(&name.name);
                self.host.tap.set_way(Way::Off);
                engine.policy.choose_prefetch(prefetcher.ok_or_else(|| format!("prefetch={name}: there is no such prefetcher"))?);
            }
            Setting::Pace(knob, number) => counters::set_pace(engine, knob, number)?,
            Setting::Slowdown(slowdown) => {
                self.host.choice.set(engine, slowdown);
                self.host.state.filter(|_| slowdown.is_some()).inspect(|state| state.set_limit(0));
            }
            Setting::Budget(size) => self.host.choice.set_size(engine, size)?,
            Setting::AddSwap(_) | Setting::RemoveSwap(_) => {
                return Err(format!(
                    "{key}{value}: a virtual machine's manager keeps its swap spaces: start it anew with others"
                ));
            }
        }
        Ok(Set::Done)
    }

    fn translate(&self, address: u64) -> Result<Vec<Translated>, String> {
        self.host.tap.translate(address)
    }

    fn change(&self, id: u64) -> Result<Change, String> {
        Err(format!("change {id}: there is no such change"))
    }
}
