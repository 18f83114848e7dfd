//! The machine: cores in sockets, interrupts between them, devices for pages. Times in ns.

/// A machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Its cores.
    pub cores: u32,
    /// Cores of a socket.
    pub per_socket: u32,
    /// A cache line comes from another core of the socket; from another socket.
    pub line_ns: [u64; 2],
    /// Interrupts from core to core.
    pub interrupts: Interrupts,
    /// Where pages go.
    pub far: Far,
}

/// What an interrupt that flushes a core's TLB costs.
#[derive(Clone, Copy, Debug)]
pub struct Interrupts {
    /// The sender, for each core.
    pub send_ns: u64,
    /// On its way, and its answer: within a socket; to another.
    pub way_ns: [u64; 2],
    /// The core that gets it.
    pub handle_ns: u64,
}

/// Devices, or the network.
#[derive(Clone, Copy, Debug)]
pub struct Far {
    /// How many.
    pub devices: u32,
    /// A read takes so long; so long a write.
    pub read_ns: u64,
    /// See above.
    pub write_ns: u64,
    /// One device is busy so long with a page.
    pub page_ns: u64,
    /// Reads and writes do not wait for each other (a network).
    pub both_ways: bool,
    /// A reader keeps its core while it waits.
    pub spins: bool,
}

impl Machine {
    /// 0: two cores are in one socket; 1: they are not.
    #[must_use]
    pub fn apart(&self, one: u32, other: u32) -> usize {
        usize::from(one / self.per_socket.max(1) != other / self.per_socket.max(1))
    }

    /// MAGE's computing node (§6): two sockets of 28 cores, 192 of 200 Gbit/s, 3.9 µs a page. How long interrupts take is fitted: with them Hermit's flushes
    /// take 6 µs when one evictor sends them to 48 cores, which DiLOS loses to them there; Hermit loses 27 (§3.2). A cache line's way is what such processors usually need.
    #[must_use]
    pub const fn mage() -> Machine {
        Machine {
            cores: 56,
            per_socket: 28,
            line_ns: [60, 160],
            interrupts: Interrupts { send_ns: 100, way_ns: [500, 1_500], handle_ns: 400 },
            far: Far { devices: 1, read_ns: 3_900, write_ns: 3_900, page_ns: 171, both_ways: true, spins: true },
        }
    }

    /// ScaleSwap's (§5.1): two sockets of 64 cores, up to eight SSDs. Together they give 3.4, 5.8, 9.4 and 11.2 GB/s with 1, 2, 4 and 8 (§3.2). Their latency, 60 µs,
    /// is not in the paper; it is usual for such SSDs.
    #[must_use]
    pub fn scaleswap(devices: u32) -> Machine {
        // ns a page: devices times 4,096 B by the rate of all.
        let page_ns = match devices {
            0 | 1 => 1_205,
            2 => 1_412,
            3 | 4 => 1_743,
            _ => 2_926,
        };
        Machine {
            cores: 128,
            per_socket: 64,
            far: Far { devices: devices.max(1), read_ns: 60_000, write_ns: 20_000, page_ns, both_ways: false, spins: false },
            ..Machine::mage()
        }
    }

    /// This project's: two cores of a virtual machine, and far memory that takes 4 µs and any number of pages. An interrupt takes 10 µs there
    /// (`docs/src/decisions/costs.md`). Two threads that raise signals all the time take 0.4 µs more for each than one, two passes of the lock: hence its lines.
    #[must_use]
    pub const fn ours(cores: u32) -> Machine {
        Machine {
            cores,
            per_socket: 64,
            line_ns: [180, 180],
            interrupts: Interrupts { send_ns: 1_000, way_ns: [4_000, 4_000], handle_ns: 1_000 },
            far: Far { devices: 1, read_ns: 4_000, write_ns: 4_000, page_ns: 0, both_ways: true, spins: true },
        }
    }

    /// MAGE's with so many cores, in sockets of 64, and far memory that takes any number of pages: what stops a system but its devices.
    #[must_use]
    pub const fn endless(cores: u32) -> Machine {
        let mut machine = Machine::mage();
        (machine.cores, machine.per_socket, machine.far.page_ns) = (cores, 64, 0);
        machine
    }
}
