//! What a switch costs, and what a runtime costs while nothing happens.
//!
//!     cargo run --release -p farshore-uthread --example switch
//!
//! Prints the median of several rounds: a switch between two stacks (there and back is two), a yield through the worker's loop, a spawn with its
//! join, and the processor time of an idle runtime with 1,000 unithreads that wait.

#[cfg(not(loom))]
mod measure {
    use core::arch::x86_64::_rdtsc;
    use core::cell::Cell;
    use core::time::Duration;
    use farshore_uthread::switch::{prepare, switch};
    use farshore_uthread::{Config, Runtime, sleep, yield_now};
    use std::time::Instant;

    const ROUNDS: usize = 15;

    /// Runs `work`, which does something `count` times; prints nanoseconds and cycles of one.
    fn report(what: &str, count: u32, mut work: impl FnMut()) {
        let mut rounds: Vec<(f64, f64)> = (0..ROUNDS)
            .map(|_| {
                // SAFETY: every x86-64 processor has it.
                let (time, cycles) = (Instant::now(), unsafe { _rdtsc() });
                work();
                // SAFETY: as above.
                let cycles = unsafe { _rdtsc() } - cycles;
                (time.elapsed().as_nanos() as f64 / f64::from(count), cycles as f64 / f64::from(count))
            })
            .collect();
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ns, cycles) = rounds[ROUNDS / 2];
        println!("{what:32} {ns:8.1} ns {cycles:8.0} cycles");
    }

    struct Both {
        here: Cell<usize>,
        there: Cell<usize>,
    }

    extern "sysv64" fn other(both: usize) -> ! {
        // SAFETY: `switches` lives for as long as this runs.
        let both = unsafe { &*core::ptr::with_exposed_provenance::<Both>(both) };
        loop {
            // SAFETY: the other context waits at `here`.
            unsafe { switch(both.there.as_ptr(), both.here.get()) };
        }
    }

    fn switches() {
        const COUNT: u32 = 1_000_000;
        let mut stack = vec![0u128; 1024];
        let both = Both { here: Cell::new(0), there: Cell::new(0) };
        let argument = (&raw const both).expose_provenance();
        // SAFETY: 16 KiB of stack, aligned.
        both.there.set(unsafe { prepare(stack.as_mut_ptr_range().end.cast(), other, argument) });
        report("switch", COUNT, || {
            for _ in 0..COUNT / 2 {
                // SAFETY: the other context waits at `there`.
                unsafe { switch(both.here.as_ptr(), both.there.get()) };
            }
        });
    }

    fn processor_time() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes to `time`.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    pub fn all() {
        switches();
        const YIELDS: u32 = 100_000;
        let runtime = Runtime::start(Config { workers: 1, ..Config::default() }).expect("a runtime");
        report("yield, two unithreads", 2 * YIELDS, || {
            let yields = || (0..YIELDS).for_each(|_| yield_now());
            let tasks = [(); 2].map(|()| runtime.spawn(yields).expect("room"));
            tasks.into_iter().for_each(|task| task.join().expect("no panic"));
        });
        const SPAWNS: u32 = 2_000;
        report("spawn and join, inside", SPAWNS, || {
            let spawns = || (0..SPAWNS).for_each(|_| farshore_uthread::spawn(|| ()).expect("room").join().expect("no panic"));
            runtime.spawn(spawns).expect("room").join().expect("no panic");
        });
        for _ in 0..1000 {
            drop(runtime.spawn(|| sleep(Duration::from_secs(3600))).expect("room"));
        }
        std::thread::sleep(Duration::from_millis(200));
        let (begin, before) = (Instant::now(), processor_time());
        std::thread::sleep(Duration::from_secs(3));
        let share = (processor_time() - before).as_secs_f64() / begin.elapsed().as_secs_f64();
        println!("{:32} {:8.3} % of a core", "idle, 1,000 waiting", share * 100.0);
        runtime.shutdown().expect("not from inside");
    }
}

fn main() {
    #[cfg(not(loom))]
    measure::all();
}
