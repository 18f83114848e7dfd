//! `bfs`: breadth-first searches of a Kronecker graph, as `bfs` of the GAP Benchmark Suite makes them.
//!
//! Level by level, all threads together. A step goes *down* from the vertices of the last level to their neighbours, or, where those have a large part of the edges,
//! *up* from each vertex that was not reached yet, until one of its neighbours is of the last level (Beamer, Asanović, Patterson: Direction-Optimizing Breadth-First
//! Search, SC 2012, with GAP's two numbers for the change). Not as in GAP, vertices of a level are found by going through all depths, so that no list is
//! kept; and depths are stored, not parents, since they are the same for any number of threads.
//!
//! One operation is one entry of the list of a vertex that is reached: 4 bytes, whether the search looks at it or not, as Graph500 counts.
//!
//! What is verified at the end, of each search: the start has depth 0, each other vertex that was reached has a neighbour one level above, no edge skips a level or
//! leads to a vertex that was not reached, which leaves no other depths; and the graph's hash.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;

use farshore_load::outcome::{MEASURE, Outcome};
use farshore_load::workload;
use quanta::Clock;

use super::graph::{self, Graph, joined};
use super::scatter::mix2;
use crate::record::{Recorder, Total};
use crate::report::{Report, faults_of_this_thread};
use crate::verify::Wrongs;

/// A vertex that was not reached.
const NONE: u32 = u32::MAX;
/// Edges and vertices of a block.
const BLOCK: usize = 1 << 16;
/// Up, where the last level has more than this part of the edges of all that were not reached.
const ALPHA: u64 = 15;
/// Down again, where it has less than this part of all vertices.
const BETA: u64 = 18;

/// Runs the workload.
///
/// # Errors
/// If the graph does not fit, or cannot be read or written.
pub fn run(args: &workload::Search, report: &mut Report) -> Result<Outcome, String> {
    let threads = args.common.threads as usize;
    report.phase("fill");
    let graph = graph::of(args, threads)?;
    let outcome = Outcome { unit: "edge".into(), data_bytes: graph.bytes(), ..Outcome::default() };
    if args.only_graph {
        return Ok(Outcome { verified: "the file of the graph".into(), checksum: format!("{:016x}", graph.hash()), ..outcome });
    }
    let searches = Searches::new(&graph, args.trials as usize, args.common.seed)?;
    report.phase(MEASURE);
    let (total, worst_faults) = searches.make(threads);
    report.operations(total.operations);
    report.worst_thread_faults(worst_faults);
    report.phase("verify");
    let (wrongs, depths) = searches.check(threads);
    Ok(Outcome {
        operations: total.operations,
        seconds: total.seconds,
        bytes_per_operation: size_of::<u32>() as u64,
        data_bytes: graph.bytes() + searches.bytes(),
        timeline: total.timeline,
        verified: format!("depths of {} searches of {} vertices, and the graph", searches.starts.len(), graph.vertices()),
        checksum: format!("{:016x}", mix2(graph.hash(), depths)),
        wrong: wrongs.lines(),
        ..outcome
    })
}

/// Searches and where they start. Depths are atomic because threads share them; all accesses are relaxed, since a barrier is between two levels.
#[derive(Debug)]
struct Searches<'a> {
    graph: &'a Graph,
    starts: Vec<usize>,
    /// Depths of each search.
    depths: Vec<Vec<AtomicU32>>,
}

/// What the threads of a search share.
struct Shared {
    blocks: Vec<Range<usize>>,
    barrier: Barrier,
    /// Blocks of this step that were taken.
    taken: AtomicUsize,
    /// Vertices and entries that this step has found.
    found: [AtomicU64; 2],
    /// Entries of vertices that were not reached.
    left: AtomicU64,
    /// Whether this step goes up.
    up: AtomicUsize,
}

impl<'a> Searches<'a> {
    fn new(graph: &'a Graph, count: usize, seed: u64) -> Result<Self, String> {
        let depths = (0..count).map(|_| graph::vector(graph.vertices(), || AtomicU32::new(NONE))).collect::<Result<_, _>>()?;
        Ok(Searches { graph, starts: starts(graph, count, seed), depths })
    }

    fn bytes(&self) -> u64 {
        (self.depths.len() * self.graph.vertices() * size_of::<u32>()) as u64
    }

    /// All of them, one after the other.
    fn make(&self, threads: usize) -> (Total, u64) {
        let blocks = self.graph.balanced((self.graph.entries() + self.graph.vertices()).div_ceil(BLOCK).max(threads));
        let shared = Shared {
            blocks,
            barrier: Barrier::new(threads),
            taken: AtomicUsize::new(0),
            found: [AtomicU64::new(0), AtomicU64::new(0)],
            left: AtomicU64::new(0),
            up: AtomicUsize::new(0),
        };
        let clock = Clock::new();
        let start = clock.raw();
        let work = || {
            let mut recorder = Recorder::new(&clock);
            recorder.measure_since(start);
            for (start, depths) in self.starts.iter().zip(&self.depths) {
                self.search(&shared, *start, depths, &mut recorder);
            }
            (recorder, faults_of_this_thread())
        };
        let done: Vec<(Recorder, u64)> = thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            running.into_iter().map(joined).collect()
        });
        let seconds = clock.delta(start, clock.raw()).as_secs_f64();
        let worst = done.iter().map(|(_, faults)| *faults).max().unwrap_or(0);
        (Total::of(done.into_iter().map(|(recorder, _)| recorder).collect(), seconds), worst)
    }

    /// One thread's part of a search.
    fn search(&self, shared: &Shared, start: usize, depths: &[AtomicU32], recorder: &mut Recorder) {
        let entries = self.graph.degree(start);
        if shared.barrier.wait().is_leader() {
            depths[start].store(0, Relaxed);
            shared.left.store(self.graph.entries() as u64 - entries, Relaxed);
            shared.up.store(0, Relaxed);
            shared.begin();
            recorder.done_untimed(entries);
        }
        shared.barrier.wait();
        for level in 0.. {
            let up = shared.up.load(Relaxed) != 0;
            while let Some(block) = shared.take() {
                recorder.begin();
                let vertices = shared.blocks[block].clone();
                let [count, entries] =
                    if up { self.go_up(vertices, level, depths) } else { self.go_down(vertices, level, depths) };
                shared.found[0].fetch_add(count, Relaxed);
                shared.found[1].fetch_add(entries, Relaxed);
                recorder.done_untimed(entries);
            }
            if shared.barrier.wait().is_leader() {
                shared.decide(self.graph.vertices() as u64);
            }
            // The leader has left the numbers of this level for all to see.
            shared.barrier.wait();
            let found = shared.found[0].load(Relaxed);
            if shared.barrier.wait().is_leader() {
                shared.begin();
            }
            shared.barrier.wait();
            if found == 0 {
                return;
            }
        }
    }

    /// From the vertices of `level` to their neighbours.
    fn go_down(&self, vertices: Range<usize>, level: u32, depths: &[AtomicU32]) -> [u64; 2] {
        let mut found = [0, 0];
        for vertex in vertices.filter(|vertex| depths[*vertex].load(Relaxed) == level) {
            for neighbour in self.graph.neighbours(vertex) {
                let depth = &depths[*neighbour as usize];
                if depth.load(Relaxed) == NONE && depth.compare_exchange(NONE, level + 1, Relaxed, Relaxed).is_ok() {
                    found[0] += 1;
                    found[1] += self.graph.degree(*neighbour as usize);
                }
            }
        }
        found
    }

    /// From each vertex that was not reached, until a neighbour of `level` is found.
    fn go_up(&self, vertices: Range<usize>, level: u32, depths: &[AtomicU32]) -> [u64; 2] {
        let mut found = [0, 0];
        for vertex in vertices.filter(|vertex| depths[*vertex].load(Relaxed) == NONE) {
            if self.graph.neighbours(vertex).iter().any(|neighbour| depths[*neighbour as usize].load(Relaxed) == level) {
                depths[vertex].store(level + 1, Relaxed);
                found[0] += 1;
                found[1] += self.graph.degree(vertex);
            }
        }
        found
    }

    /// What is wrong, and a hash of all depths.
    fn check(&self, threads: usize) -> (Wrongs, u64) {
        let parts = self.graph.balanced(threads);
        let found: Vec<(Wrongs, u64, u64)> = thread::scope(|scope| {
            let running: Vec<_> = parts.into_iter().map(|part| scope.spawn(|| self.check_part(part))).collect();
            running.into_iter().map(joined).collect()
        });
        let graph = found.iter().fold(0_u64, |sum, part| sum.wrapping_add(part.1));
        let depths = found.iter().fold(0_u64, |sum, part| sum.wrapping_add(part.2));
        let mut wrongs = Wrongs::of(found.into_iter().map(|part| part.0));
        if graph != self.graph.hash() {
            wrongs.add(|| format!("the graph's hash is {graph:016x}, and was {:016x} when it was made", self.graph.hash()));
        }
        (wrongs, depths)
    }

    fn check_part(&self, part: Range<usize>) -> (Wrongs, u64, u64) {
        let (mut wrongs, mut hash) = (Wrongs::default(), 0_u64);
        for (start, depths) in self.starts.iter().zip(&self.depths) {
            for vertex in part.clone() {
                let depth = depths[vertex].load(Relaxed);
                hash = hash.wrapping_add(mix2(mix2(*start as u64, vertex as u64), u64::from(depth)));
                let mut above = depth == NONE;
                let mut skips = false;
                for neighbour in self.graph.neighbours(vertex) {
                    let other = depths[*neighbour as usize].load(Relaxed);
                    above |= depth != NONE && other == depth.wrapping_sub(1) && depth > 0;
                    skips |= (depth == NONE) != (other == NONE) || depth.abs_diff(other) > 1;
                }
                let right = if vertex == *start { depth == 0 } else { depth != 0 && above };
                if !right || skips {
                    wrongs.add(|| format!("the depth {depth} of vertex {vertex} is not that of a search from {start}"));
                }
            }
        }
        (wrongs, self.graph.hash_of(part), hash)
    }
}

impl Shared {
    /// The next block of a step.
    fn take(&self) -> Option<usize> {
        Some(self.taken.fetch_add(1, Relaxed)).filter(|block| *block < self.blocks.len())
    }

    /// Makes ready for a step.
    fn begin(&self) {
        self.taken.store(0, Relaxed);
        self.found.iter().for_each(|count| count.store(0, Relaxed));
    }

    /// Which way the next step goes.
    fn decide(&self, vertices: u64) {
        let [count, entries] = [self.found[0].load(Relaxed), self.found[1].load(Relaxed)];
        let left = self.left.load(Relaxed).saturating_sub(entries);
        self.left.store(left, Relaxed);
        let up = if self.up.load(Relaxed) == 0 { entries > left / ALPHA } else { count >= vertices / BETA };
        self.up.store(usize::from(up), Relaxed);
    }
}

/// So many vertices with neighbours, by chance.
fn starts(graph: &Graph, count: usize, seed: u64) -> Vec<usize> {
    let vertices = graph.vertices() as u64;
    // Below the number of vertices, which are in memory.
    let chance = (0_u64..).map(|n| usize::try_from(mix2(seed, n) % vertices).unwrap_or(0));
    chance.filter(|vertex| graph.degree(*vertex) > 0).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::super::graph::Recipe;
    use super::*;

    fn made(scale: u32, seed: u64) -> Graph {
        Graph::make(Recipe { scale, degree: 8, seed }, 2).unwrap_or_else(|error| panic!("{error}"))
    }

    fn depths(searches: &Searches) -> Vec<Vec<u32>> {
        searches.depths.iter().map(|depths| depths.iter().map(|depth| depth.load(Relaxed)).collect()).collect()
    }

    /// With a queue.
    fn naive(graph: &Graph, start: usize) -> Vec<u32> {
        let mut depths = vec![NONE; graph.vertices()];
        depths[start] = 0;
        let mut queue = std::collections::VecDeque::from([start]);
        while let Some(vertex) = queue.pop_front() {
            for neighbour in graph.neighbours(vertex) {
                let neighbour = *neighbour as usize;
                if depths[neighbour] == NONE {
                    depths[neighbour] = depths[vertex] + 1;
                    queue.push_back(neighbour);
                }
            }
        }
        depths
    }

    #[test]
    fn depths_are_those_of_a_queue_for_any_number_of_threads() {
        for (scale, seed) in [(4, 1), (8, 2), (13, 3)] {
            let graph = made(scale, seed);
            let mut operations = None;
            for threads in [1, 2, 5] {
                let searches = Searches::new(&graph, 3, seed).unwrap();
                let (total, _) = searches.make(threads);
                for (start, found) in searches.starts.iter().zip(depths(&searches)) {
                    assert!(found == naive(&graph, *start), "scale {scale}, {threads} threads, from {start}");
                }
                assert_eq!(*operations.get_or_insert(total.operations), total.operations);
                assert_eq!(total.timeline.operations.iter().sum::<u64>(), total.operations);
                assert_eq!(searches.check(threads).0.lines(), [""; 0]);
            }
        }
    }

    #[test]
    fn operations_are_the_entries_of_what_is_reached() {
        let graph = made(10, 4);
        let searches = Searches::new(&graph, 2, 4).unwrap();
        let (total, _) = searches.make(3);
        let reached = |depths: Vec<u32>| {
            (0..graph.vertices()).filter(|vertex| depths[*vertex] != NONE).map(|vertex| graph.degree(vertex)).sum::<u64>()
        };
        assert_eq!(total.operations, depths(&searches).into_iter().map(reached).sum::<u64>());
    }

    #[test]
    fn both_directions_are_taken() {
        let graph = made(13, 5);
        let all = graph.entries() as u64;
        let shared = |up: bool, left: u64, count: u64, entries: u64| {
            let shared = Shared {
                blocks: Vec::new(),
                barrier: Barrier::new(1),
                taken: AtomicUsize::new(0),
                found: [AtomicU64::new(count), AtomicU64::new(entries)],
                left: AtomicU64::new(left),
                up: AtomicUsize::new(usize::from(up)),
            };
            shared.decide(graph.vertices() as u64);
            shared.up.load(Relaxed) == 1
        };
        assert!(!shared(false, all, 3, all / 20) && shared(false, all, 300, all / 5));
        assert!(shared(true, all, 4000, 1) && !shared(true, all, 3, 1));
        // And a whole search meets both: its middle levels have most of the edges.
        let searches = Searches::new(&graph, 1, 5).unwrap();
        searches.make(2);
        let deepest = depths(&searches)[0].iter().copied().filter(|depth| *depth != NONE).max();
        assert!(deepest > Some(2), "{deepest:?}");
    }

    #[test]
    fn the_check_finds_each_wrong_depth_and_a_graph_that_changed() {
        let graph = made(9, 6);
        let searches = Searches::new(&graph, 2, 6).unwrap();
        searches.make(2);
        for vertex in 0..graph.vertices() {
            for bit in [0, 1, 31] {
                let right = searches.depths[1][vertex].fetch_xor(1 << bit, Relaxed);
                assert!(!searches.check(2).0.lines().is_empty(), "bit {bit} of vertex {vertex}");
                searches.depths[1][vertex].store(right, Relaxed);
            }
            let right = searches.depths[0][vertex].swap(0, Relaxed);
            assert!(right == 0 || !searches.check(1).0.lines().is_empty(), "a page of zeros at vertex {vertex}");
            searches.depths[0][vertex].store(right, Relaxed);
        }
        assert_eq!(searches.check(3).0.lines(), [""; 0]);
        let other = made(9, 7);
        let moved = Searches { graph: &other, ..Searches::new(&graph, 0, 6).unwrap() };
        assert_eq!(moved.check(1).0.lines(), [""; 0], "a graph of its own");
    }
}
