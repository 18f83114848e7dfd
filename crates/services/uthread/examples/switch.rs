//! What a switch costs, and what a runtime costs while nothing happens.
//!
//!     cargo run --release -p farshore-uthread --example switch
//!
//! Prints the median of several rounds: a switch between two stacks (there and back is two), a yield through the worker's loop, a spawn with its
//! join, and the processor time of an idle runtime with 1,000 unithreads that wait.

#[cfg(not(loom))]
mod measure {
    use core::time::Duration;
    use farshore_uthread::cost::{self, Cost};
    use farshore_uthread::{Config, Runtime, sleep, yield_now};
    use std::time::Instant;

    /// Prints nanoseconds and cycles of one.
    fn print(what: &str, cost: Cost) {
        println!("{what:32} {:8.1} ns {:8.0} cycles", cost.ns, cost.cycles);
    }

    fn report(what: &str, count: u32, work: impl FnMut()) {
        print(what, cost::of(count, work));
    }

    fn processor_time() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes to `time`.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    pub fn all() {
        print("switch", cost::of_a_switch());
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
