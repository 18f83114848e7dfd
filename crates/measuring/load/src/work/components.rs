//! `cc`: connected components of a Kronecker graph, each vertex with the least number of a vertex that it is connected to.
//!
//! Passes of all threads together: a vertex takes the least label of its own and its neighbours, as they were before the pass, and then the label of that label's vertex
//! (pointer jumping, as in Shiloach and Vishkin's algorithm, which the GAP Benchmark Suite has). Labels that a pass reads are not written in it, so there are
//! as many passes, and the same labels, for any number of threads. The last pass changes nothing.
//!
//! One operation is one entry of a list, 4 bytes, in each pass.
//!
//! What is verified at the end, of each search: labels are, bit by bit, what the last pass wrote (their hash); no edge has two labels; a label is its own vertex's
//! label, and none is above its vertex; a vertex without neighbours has its own; and the graph's hash.

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

/// Edges and vertices of a block.
const BLOCK: usize = 1 << 16;

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
    let labels = Labels::new(&graph)?;
    report.phase(MEASURE);
    let found = labels.find(args.trials as usize, threads);
    report.operations(found.total.operations);
    report.worst_thread_faults(found.worst_faults);
    report.phase("verify");
    let (wrongs, components) = labels.check(&found, threads);
    Ok(Outcome {
        operations: found.total.operations,
        seconds: found.total.seconds,
        bytes_per_operation: size_of::<u32>() as u64,
        data_bytes: graph.bytes() + 2 * (graph.vertices() * size_of::<u32>()) as u64,
        timeline: found.total.timeline,
        verified: format!("labels of {} vertices in {components} components, and the graph", graph.vertices()),
        checksum: format!("{:016x}", mix2(graph.hash(), found.hash)),
        wrong: wrongs.lines(),
        ..outcome
    })
}

/// Labels of a graph, before and after a pass in turn. They are atomic because threads share them; all accesses are relaxed, since a barrier is between two passes.
#[derive(Debug)]
struct Labels<'a> {
    graph: &'a Graph,
    sides: [Vec<AtomicU32>; 2],
}

/// What came of it.
#[derive(Debug)]
struct Found {
    total: Total,
    worst_faults: u64,
    /// The side that was written last.
    side: usize,
    /// Hash of what was written there.
    hash: u64,
}

/// What the threads share.
struct Shared {
    blocks: Vec<Range<usize>>,
    barrier: Barrier,
    /// Blocks of this pass that were taken.
    taken: AtomicUsize,
    /// Vertices whose label this pass has changed.
    changed: AtomicU64,
    /// Hash of what this pass has written.
    hash: AtomicU64,
}

impl<'a> Labels<'a> {
    fn new(graph: &'a Graph) -> Result<Self, String> {
        let side = || graph::vector(graph.vertices(), || AtomicU32::new(0));
        Ok(Labels { graph, sides: [side()?, side()?] })
    }

    fn find(&self, trials: usize, threads: usize) -> Found {
        let blocks = self.graph.balanced((self.graph.entries() + self.graph.vertices()).div_ceil(BLOCK).max(threads));
        let shared = Shared {
            blocks,
            barrier: Barrier::new(threads),
            taken: AtomicUsize::new(0),
            changed: AtomicU64::new(0),
            hash: AtomicU64::new(0),
        };
        let clock = Clock::new();
        let start = clock.raw();
        let work = || {
            let mut recorder = Recorder::new(&clock);
            recorder.measure_since(start);
            let ended = (0..trials).map(|_| self.work(&shared, &mut recorder)).last().unwrap_or_default();
            (recorder, faults_of_this_thread(), ended)
        };
        let done: Vec<(Recorder, u64, (usize, u64))> = thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            running.into_iter().map(joined).collect()
        });
        let seconds = clock.delta(start, clock.raw()).as_secs_f64();
        let worst_faults = done.iter().map(|(_, faults, _)| *faults).max().unwrap_or(0);
        let (side, hash) = done.first().map(|(_, _, ended)| *ended).unwrap_or_default();
        Found { total: Total::of(done.into_iter().map(|(recorder, _, _)| recorder).collect(), seconds), worst_faults, side, hash }
    }

    /// One thread's part of a trial; the side that was written last, and its hash.
    fn work(&self, shared: &Shared, recorder: &mut Recorder) -> (usize, u64) {
        self.pass(shared, recorder, |vertices| {
            for vertex in vertices {
                self.sides[0][vertex].store(number(vertex), Relaxed);
            }
            (0, 0, 0)
        });
        for pass in 0.. {
            let [from, to] = [&self.sides[pass % 2], &self.sides[(pass + 1) % 2]];
            let (changed, hash) = self.pass(shared, recorder, |vertices| self.pull(vertices, from, to));
            if changed == 0 {
                return ((pass + 1) % 2, hash);
            }
        }
        (0, 0)
    }

    /// One pass of all threads over all blocks; `block` tells labels that changed, the hash of what it wrote, and entries that it went through.
    fn pass(&self, shared: &Shared, recorder: &mut Recorder, block: impl Fn(Range<usize>) -> (u64, u64, u64)) -> (u64, u64) {
        if shared.barrier.wait().is_leader() {
            shared.taken.store(0, Relaxed);
            shared.changed.store(0, Relaxed);
            shared.hash.store(0, Relaxed);
        }
        shared.barrier.wait();
        while let Some(vertices) = shared.take() {
            recorder.begin();
            let (changed, hash, entries) = block(vertices);
            shared.changed.fetch_add(changed, Relaxed);
            shared.hash.fetch_add(hash, Relaxed);
            recorder.done_untimed(entries);
        }
        shared.barrier.wait();
        (shared.changed.load(Relaxed), shared.hash.load(Relaxed))
    }

    fn pull(&self, vertices: Range<usize>, from: &[AtomicU32], to: &[AtomicU32]) -> (u64, u64, u64) {
        let (mut changed, mut hash, mut entries) = (0, 0_u64, 0);
        for vertex in vertices {
            let list = self.graph.neighbours(vertex);
            let own = from[vertex].load(Relaxed);
            let least = list.iter().fold(own, |least, neighbour| least.min(from[*neighbour as usize].load(Relaxed)));
            let label = least.min(from[least as usize].load(Relaxed));
            to[vertex].store(label, Relaxed);
            changed += u64::from(label != own);
            hash = hash.wrapping_add(mix2(vertex as u64, u64::from(label)));
            entries += list.len() as u64;
        }
        (changed, hash, entries)
    }

    /// What is wrong, and how many components there are.
    fn check(&self, found: &Found, threads: usize) -> (Wrongs, u64) {
        let labels = &self.sides[found.side];
        let part = |vertices: Range<usize>| {
            let (mut wrongs, mut hash, mut roots) = (Wrongs::default(), 0_u64, 0);
            for vertex in vertices.clone() {
                let label = labels[vertex].load(Relaxed);
                hash = hash.wrapping_add(mix2(vertex as u64, u64::from(label)));
                roots += u64::from(label as usize == vertex);
                let list = self.graph.neighbours(vertex);
                let root = labels.get(label as usize).is_some_and(|root| root.load(Relaxed) == label);
                let same = list.iter().all(|neighbour| labels[*neighbour as usize].load(Relaxed) == label);
                let alone = !list.is_empty() || label as usize == vertex;
                if !(root && same && alone && label as usize <= vertex) {
                    wrongs.add(|| format!("the label {label} of vertex {vertex} is not that of its component"));
                }
            }
            (wrongs, hash, roots, self.graph.hash_of(vertices))
        };
        let parts = self.graph.balanced(threads);
        let found_parts: Vec<(Wrongs, u64, u64, u64)> = thread::scope(|scope| {
            let part = &part;
            let running: Vec<_> = parts.into_iter().map(|vertices| scope.spawn(move || part(vertices))).collect();
            running.into_iter().map(joined).collect()
        });
        let sum =
            |pick: fn(&(Wrongs, u64, u64, u64)) -> u64| found_parts.iter().fold(0_u64, |sum, part| sum.wrapping_add(pick(part)));
        let (hash, roots, graph) = (sum(|part| part.1), sum(|part| part.2), sum(|part| part.3));
        let mut wrongs = Wrongs::of(found_parts.into_iter().map(|part| part.0));
        for (what, now, then) in [("labels", hash, found.hash), ("graph", graph, self.graph.hash())] {
            if now != then {
                wrongs.add(|| format!("the hash of the {what} is {now:016x}, and was {then:016x} when they were written"));
            }
        }
        (wrongs, roots)
    }
}

impl Shared {
    /// The next block of a pass.
    fn take(&self) -> Option<Range<usize>> {
        self.blocks.get(self.taken.fetch_add(1, Relaxed)).cloned()
    }
}

/// A vertex as a label: there are at most 2^31.
fn number(vertex: usize) -> u32 {
    u32::try_from(vertex).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::graph::Recipe;
    use super::*;

    fn made(scale: u32, degree: u32, seed: u64) -> Graph {
        Graph::make(Recipe { scale, degree, seed }, 2).unwrap_or_else(|error| panic!("{error}"))
    }

    /// By sets that are joined.
    fn naive(graph: &Graph) -> Vec<u32> {
        let mut parents: Vec<usize> = (0..graph.vertices()).collect();
        fn root(parents: &mut [usize], vertex: usize) -> usize {
            if parents[vertex] != vertex {
                parents[vertex] = root(parents, parents[vertex]);
            }
            parents[vertex]
        }
        for vertex in 0..graph.vertices() {
            for neighbour in graph.neighbours(vertex) {
                let (one, other) = (root(&mut parents, vertex), root(&mut parents, *neighbour as usize));
                parents[one.max(other)] = one.min(other);
            }
        }
        (0..graph.vertices()).map(|vertex| number(root(&mut parents, vertex))).collect()
    }

    #[test]
    fn labels_are_those_of_joined_sets_for_any_number_of_threads() {
        // Few edges make many components, some of them long.
        for (scale, degree, seed) in [(4, 1, 1), (9, 1, 2), (13, 1, 3), (12, 8, 4)] {
            let graph = made(scale, degree, seed);
            let wanted = naive(&graph);
            let mut operations = None;
            for threads in [1, 2, 5] {
                let labels = Labels::new(&graph).unwrap();
                let found = labels.find(2, threads);
                let labelled: Vec<u32> = labels.sides[found.side].iter().map(|label| label.load(Relaxed)).collect();
                assert!(labelled == wanted, "scale {scale}, {threads} threads");
                assert_eq!(*operations.get_or_insert(found.total.operations), found.total.operations);
                let (wrongs, components) = labels.check(&found, threads);
                assert_eq!(wrongs.lines(), [""; 0]);
                assert_eq!(components, (0..).zip(&wanted).filter(|(vertex, label)| vertex == *label).count() as u64);
            }
        }
    }

    #[test]
    fn the_check_finds_each_wrong_label() {
        let graph = made(9, 1, 5);
        let labels = Labels::new(&graph).unwrap();
        let found = labels.find(1, 2);
        for vertex in 0..graph.vertices() {
            for bit in [0, 5, 31] {
                labels.sides[found.side][vertex].fetch_xor(1 << bit, Relaxed);
                assert!(!labels.check(&found, 2).0.lines().is_empty(), "bit {bit} of vertex {vertex}");
                labels.sides[found.side][vertex].fetch_xor(1 << bit, Relaxed);
            }
        }
        assert_eq!(labels.check(&found, 3).0.lines(), [""; 0]);
    }
}
