//! `pagerank`: ranks of the vertices of a Kronecker graph, as `pr_spmv` of the GAP Benchmark Suite computes them.
//!
//! An iteration has two passes. The first computes what each vertex gives to each of its neighbours, its rank divided by
//! their number. The second pulls: each vertex sums up what its neighbours give. Ranks that a pass reads are not written in it
//! (Jacobi), and each sum is taken by one thread in the order of the list: ranks are the same to the last bit for
//! any number of threads. As in GAP they are of 32 bits, and what vertices without neighbours have is lost; not as there,
//! sums are of 64 bits, and all iterations are gone through, whatever the error is.
//!
//! Threads take blocks of vertices with about the same number of edges. One operation is one entry of a list, 4 bytes, in
//! the second pass.
//!
//! What is verified at the end, in one pass over the graph:
//! * graph and ranks are, bit by bit, what was made: their hashes are still those of when they were written;
//! * the sum of all ranks: what vertices with neighbours have stays the same, each other one has the least rank;
//! * as in GAP's verifier one more iteration, which pushes in place of pulling, changes the ranks by so much at most: an
//!   iteration changes them by the damping factor times the change of the iteration before, or less.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;

use farshore_load::outcome::{MEASURE, Outcome};
use farshore_load::workload;
use quanta::Clock;

use super::graph::{self, Graph, Recipe, hash_of_entry, joined};
use super::scatter::mix2;
use crate::record::{Recorder, Total};
use crate::report::{Report, faults_of_this_thread};

/// The share of a rank that goes to the neighbours.
const DAMPING: f64 = 0.85;
/// Memory of both arrays of [`Ranking`], for each vertex.
const BYTES_PER_VERTEX: u64 = 8;
/// Edges and vertices of a block: large enough that taking it costs nothing, small enough that threads end together.
const BLOCK: usize = 1 << 16;
/// What rounding to 32 bits may change in all ranks together, in one iteration that pushes: GAP's tolerance.
const ROUNDING: f64 = 1e-4;
/// What rounding may change in their sum, where errors cancel.
const ROUNDING_OF_SUM: f64 = 1e-5;

/// Runs the workload.
///
/// # Errors
/// If the graph does not fit, or cannot be read or written.
pub fn run(args: &workload::Pagerank, report: &mut Report) -> Result<Outcome, String> {
    let threads = args.common.threads as usize;
    let scale = args.graph_scale()?;
    let recipe = Recipe { scale, degree: args.degree, seed: args.common.seed };
    report.phase("fill");
    let graph = match &args.graph {
        Some(path) => Graph::from_file(path, recipe, threads)?,
        None => Graph::make(recipe, threads)?,
    };
    let told = format!("{} vertices with {} neighbours", graph.vertices(), graph.entries());
    let checksum = format!("{:016x}", graph.hash());
    let outcome = Outcome { unit: "edge".into(), data_bytes: graph.bytes(), ..Outcome::default() };
    if args.only_graph {
        return Ok(Outcome { verified: format!("the file of the graph: {told}"), checksum, ..outcome });
    }
    let ranking = Ranking::new(&graph)?;
    report.phase(MEASURE);
    let iterated = ranking.iterate(args.iterations as usize, threads);
    report.operations(iterated.total.operations);
    report.worst_thread_faults(iterated.worst_faults);
    report.phase("verify");
    let check = ranking.check(threads);
    let wrong = check.wrong(&iterated, &graph);
    Ok(Outcome {
        operations: iterated.total.operations,
        seconds: iterated.total.seconds,
        bytes_per_operation: size_of::<u32>() as u64,
        data_bytes: graph.bytes() + BYTES_PER_VERTEX * graph.vertices() as u64,
        timeline: iterated.total.timeline,
        verified: format!("graph and ranks of {told}: one more iteration changes them by {:.2e}", check.change),
        checksum: format!("{:016x}", mix2(graph.hash(), iterated.hash)),
        wrong,
        ..outcome
    })
}

/// Ranks of a graph. They are atomic because threads share them; all accesses are relaxed, since barriers, starts and ends
/// of threads are between those that write and those that read.
#[derive(Debug)]
struct Ranking<'a> {
    graph: &'a Graph,
    /// Bits of the ranks.
    ranks: Vec<AtomicU32>,
    /// Bits of what each vertex gives to each neighbour; in [`Ranking::check`], of the sums.
    gives: Vec<AtomicU32>,
}

/// What came of the iterations.
#[derive(Debug)]
struct Iterated {
    total: Total,
    worst_faults: u64,
    /// By how much the last iteration changed all ranks together.
    change: f64,
    /// Hash of the ranks, as they were when they were written.
    hash: u64,
}

/// What one thread has of that.
struct Share {
    recorder: Recorder,
    faults: u64,
    hash: u64,
}

/// What the threads of the iterations share.
struct Iterations {
    blocks: Vec<Range<usize>>,
    /// How many blocks were taken in each pass of each iteration.
    taken: Vec<AtomicUsize>,
    barrier: Barrier,
    /// Bits of the change in each block, in the iteration that runs.
    changes: Vec<AtomicU64>,
}

impl<'a> Ranking<'a> {
    fn new(graph: &'a Graph) -> Result<Self, String> {
        let first = float(1.0 / count(graph.vertices())).to_bits();
        let all = |bits: u32| graph::vector(graph.vertices(), || AtomicU32::new(bits));
        Ok(Ranking { graph, ranks: all(first)?, gives: all(0)? })
    }

    /// The least rank.
    fn base(&self) -> f64 {
        (1.0 - DAMPING) / count(self.graph.vertices())
    }

    fn rank(&self, vertex: usize) -> f32 {
        f32::from_bits(self.ranks[vertex].load(Relaxed))
    }

    fn iterate(&self, iterations: usize, threads: usize) -> Iterated {
        let blocks = self.graph.balanced((self.graph.entries() + self.graph.vertices()).div_ceil(BLOCK).max(threads));
        let shared = Iterations {
            taken: (0..2 * iterations).map(|_| AtomicUsize::new(0)).collect(),
            barrier: Barrier::new(threads),
            changes: blocks.iter().map(|_| AtomicU64::new(0)).collect(),
            blocks,
        };
        let clock = Clock::new();
        let start = clock.raw();
        let work = || self.work(&shared, Recorder::new(&clock), start);
        let shares: Vec<Share> = thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            running.into_iter().map(joined).collect()
        });
        let seconds = clock.delta(start, clock.raw()).as_secs_f64();
        Iterated {
            worst_faults: shares.iter().map(|share| share.faults).max().unwrap_or(0),
            // In order, so that this is the same for any number of threads too.
            change: shared.changes.iter().map(|change| f64::from_bits(change.load(Relaxed))).sum(),
            hash: shares.iter().fold(0, |sum, share| sum.wrapping_add(share.hash)),
            total: Total::of(shares.into_iter().map(|share| share.recorder).collect(), seconds),
        }
    }

    /// One thread's part of all iterations.
    fn work(&self, shared: &Iterations, mut recorder: Recorder, start: u64) -> Share {
        recorder.measure_since(start);
        let (mut hash, mut last) = (0_u64, shared.taken.len() / 2);
        for passes in shared.taken.chunks_exact(2) {
            last -= 1;
            while let Some(block) = shared.take(&passes[0]) {
                recorder.begin();
                self.give(shared.blocks[block].clone());
                recorder.done_untimed(0);
            }
            shared.barrier.wait();
            while let Some(block) = shared.take(&passes[1]) {
                recorder.begin();
                let vertices = shared.blocks[block].clone();
                let edges = self.graph.places(vertices.start).start..self.graph.places(vertices.end - 1).end;
                let change = if last == 0 {
                    self.pull(vertices, |vertex, rank| hash = hash.wrapping_add(hash_of_rank(vertex, rank)))
                } else {
                    self.pull(vertices, |_, _| ())
                };
                shared.changes[block].store(change.to_bits(), Relaxed);
                recorder.done_untimed(edges.len() as u64);
            }
            shared.barrier.wait();
        }
        Share { recorder, faults: faults_of_this_thread(), hash }
    }

    /// The first pass over some vertices.
    fn give(&self, vertices: Range<usize>) {
        for vertex in vertices {
            // A vertex without neighbours gives nothing to nobody: what is stored for it is never read.
            let given = f64::from(self.rank(vertex)) / count(self.graph.degree(vertex).max(1));
            self.gives[vertex].store(float(given).to_bits(), Relaxed);
        }
    }

    /// The second pass over some vertices; `each` gets their new ranks. Returns by how much they changed.
    fn pull(&self, vertices: Range<usize>, mut each: impl FnMut(usize, u32)) -> f64 {
        let base = self.base();
        let mut change = 0.0;
        for vertex in vertices {
            let mut sum = 0.0;
            for neighbour in self.graph.neighbours(vertex) {
                sum += f64::from(f32::from_bits(self.gives[*neighbour as usize].load(Relaxed)));
            }
            let rank = float(base + DAMPING * sum);
            change += f64::from((rank - self.rank(vertex)).abs());
            self.ranks[vertex].store(rank.to_bits(), Relaxed);
            each(vertex, rank.to_bits());
        }
        change
    }

    /// One more iteration without changing the ranks: each thread pushes what all vertices give to its own ones.
    fn check(&self, threads: usize) -> Check {
        let parts = self.graph.balanced(threads);
        thread::scope(|scope| {
            let running: Vec<_> = parts.into_iter().map(|part| scope.spawn(|| self.push_to(part))).collect();
            running.into_iter().map(joined).fold(Check::default(), |sum, part| sum.and(&part))
        })
    }

    fn push_to(&self, own: Range<usize>) -> Check {
        let mut check = Check::default();
        for vertex in own.clone() {
            self.gives[vertex].store(0, Relaxed);
            check.graph = check.graph.wrapping_add(self.graph.hash_of_offset(vertex));
        }
        for vertex in 0..self.graph.vertices() {
            let list = self.graph.neighbours(vertex);
            let first = list.partition_point(|neighbour| (*neighbour as usize) < own.start);
            let mine = list[first..].iter().take_while(|neighbour| (**neighbour as usize) < own.end);
            let given = f64::from(self.rank(vertex)) / count(list.len().max(1));
            for (place, neighbour) in (self.graph.places(vertex).start + first..).zip(mine) {
                let sum = &self.gives[*neighbour as usize];
                let pushed = float(f64::from(f32::from_bits(sum.load(Relaxed))) + given);
                sum.store(pushed.to_bits(), Relaxed);
                check.graph = check.graph.wrapping_add(hash_of_entry(place, *neighbour));
            }
        }
        for vertex in own {
            let rank = self.rank(vertex);
            let pushed = self.base() + DAMPING * f64::from(f32::from_bits(self.gives[vertex].load(Relaxed)));
            check.change += (pushed - f64::from(rank)).abs();
            check.sum += f64::from(rank);
            check.ranks = check.ranks.wrapping_add(hash_of_rank(vertex, rank.to_bits()));
            check.alone += u64::from(self.graph.degree(vertex) == 0);
        }
        check
    }
}

impl Iterations {
    /// The next block of a pass.
    fn take(&self, taken: &AtomicUsize) -> Option<usize> {
        Some(taken.fetch_add(1, Relaxed)).filter(|block| *block < self.blocks.len())
    }
}

/// What the check finds, of some vertices or of all.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Check {
    /// By how much one more iteration changes the ranks.
    change: f64,
    /// Of the ranks.
    sum: f64,
    /// Vertices without neighbours.
    alone: u64,
    /// Hash of the ranks.
    ranks: u64,
    /// Hash of the graph.
    graph: u64,
}

impl Check {
    fn and(self, other: &Check) -> Check {
        Check {
            change: self.change + other.change,
            sum: self.sum + other.sum,
            alone: self.alone + other.alone,
            ranks: self.ranks.wrapping_add(other.ranks),
            graph: self.graph.wrapping_add(other.graph),
        }
    }

    /// What is wrong.
    fn wrong(&self, iterated: &Iterated, graph: &Graph) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.graph != graph.hash() {
            wrong.push(format!("the graph's hash is {:016x}, and was {:016x} when it was made", self.graph, graph.hash()));
        }
        if self.ranks != iterated.hash {
            wrong.push(format!("the ranks' hash is {:016x}, and was {:016x} when they were written", self.ranks, iterated.hash));
        }
        // Comparisons that are false for what is not a number.
        let sum = 1.0 - DAMPING * count(self.alone) / count(graph.vertices());
        if !matches!((self.sum - sum).abs(), 0.0..=ROUNDING_OF_SUM) {
            wrong.push(format!("the sum of all ranks is {}, and should be {sum}", self.sum));
        }
        let change = DAMPING * iterated.change + ROUNDING;
        if !(0.0..=change).contains(&self.change) {
            wrong.push(format!("one more iteration changes the ranks by {:e}, and should by {change:e} at most", self.change));
        }
        wrong
    }
}

fn hash_of_rank(vertex: usize, bits: u32) -> u64 {
    mix2(vertex as u64, u64::from(bits))
}

/// A number of vertices or edges, which are below 2^53.
#[expect(clippy::cast_precision_loss)]
fn count(number: impl TryInto<u64>) -> f64 {
    number.try_into().map_or(f64::NAN, |number| number as f64)
}

/// Rounds to 32 bits.
#[expect(clippy::cast_possible_truncation)]
fn float(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe = Recipe { scale: 10, degree: 8, seed: 2 };

    fn made(recipe: Recipe, threads: usize) -> Graph {
        Graph::make(recipe, threads).unwrap_or_else(|error| panic!("{error}"))
    }

    fn ranking_of(graph: &Graph) -> Ranking<'_> {
        Ranking::new(graph).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same with a dense matrix in 64 bits.
    fn dense(graph: &Graph, iterations: usize) -> Vec<f64> {
        let n = graph.vertices();
        let mut matrix = vec![0.0; n * n];
        for from in 0..n {
            for to in graph.neighbours(from) {
                matrix[*to as usize * n + from] = 1.0 / graph.neighbours(from).len() as f64;
            }
        }
        let mut ranks = vec![1.0 / n as f64; n];
        for _ in 0..iterations {
            let sum = |row: usize| ranks.iter().zip(&matrix[row * n..]).map(|(rank, share)| rank * share).sum::<f64>();
            ranks = (0..n).map(|row| 0.15 / n as f64 + 0.85 * sum(row)).collect();
        }
        ranks
    }

    #[test]
    fn ranks_are_those_of_a_dense_matrix() {
        let graph = made(RECIPE, 2);
        for iterations in [1, 2, 20] {
            let ranking = ranking_of(&graph);
            ranking.iterate(iterations, 3);
            for (vertex, wanted) in dense(&graph, iterations).into_iter().enumerate() {
                let rank = f64::from(ranking.rank(vertex));
                assert!((rank / wanted - 1.0).abs() < 1e-6, "vertex {vertex}: {rank}, not {wanted}");
            }
        }
    }

    #[test]
    fn ranks_are_the_same_to_the_bit_for_any_number_of_threads() {
        let graph = made(Recipe { scale: 14, ..RECIPE }, 2);
        let outcome = |threads| {
            let ranking = ranking_of(&graph);
            let iterated = ranking.iterate(4, threads);
            assert_eq!(iterated.total.operations, 4 * graph.entries() as u64);
            assert_eq!(iterated.total.timeline.operations.iter().sum::<u64>(), iterated.total.operations);
            let bits: Vec<u32> = ranking.ranks.iter().map(|rank| rank.load(Relaxed)).collect();
            (bits, iterated.hash)
        };
        let one = outcome(1);
        for threads in [2, 5, 64] {
            assert!(outcome(threads) == one, "{threads} threads");
        }
    }

    #[test]
    fn right_ranks_pass_the_check() {
        for (scale, degree, iterations) in [(4, 1, 1), (6, 1, 3), (12, 16, 1), (12, 16, 5), (12, 16, 40)] {
            let graph = made(Recipe { scale, degree, seed: 9 }, 1);
            let ranking = ranking_of(&graph);
            let iterated = ranking.iterate(iterations, 2);
            for threads in [1, 3] {
                let check = ranking.check(threads);
                assert_eq!(check.wrong(&iterated, &graph), [""; 0], "scale {scale}, {iterations} iterations");
                assert!(check.change <= DAMPING * iterated.change + 1e-6, "rounding is far below what is allowed for");
            }
        }
    }

    #[test]
    fn the_check_finds_each_wrong_rank() {
        let graph = made(RECIPE, 1);
        let ranking = ranking_of(&graph);
        let iterated = ranking.iterate(10, 1);
        for vertex in [0, 1, 500, 1023] {
            let right = ranking.ranks[vertex].fetch_xor(1, Relaxed);
            let wrong = ranking.check(2).wrong(&iterated, &graph);
            assert!(wrong.len() == 1 && wrong[0].starts_with("the ranks' hash"), "one bit of vertex {vertex}: {wrong:?}");
            ranking.ranks[vertex].store(right, Relaxed);
        }
        assert!(ranking.check(1).wrong(&iterated, &graph).is_empty());
        // A page lost; and what is not a number.
        for bits in [0, f32::NAN.to_bits()] {
            let ranking = ranking_of(&graph);
            let iterated = ranking.iterate(10, 1);
            (300..400).for_each(|vertex| ranking.ranks[vertex].store(bits, Relaxed));
            let wrong = ranking.check(2).wrong(&iterated, &graph);
            assert_eq!(wrong.len(), 3, "{wrong:?}");
        }
    }

    #[test]
    fn the_check_finds_ranks_that_were_written_wrong() {
        let graph = made(RECIPE, 1);
        let ranking = ranking_of(&graph);
        let mut iterated = ranking.iterate(10, 1);
        // Two ranks in each other's place: the hash says what was written, the sum is right.
        let vertices = || 0..graph.vertices();
        let rank = |vertex: &usize| ranking.ranks[*vertex].load(Relaxed);
        let (Some(most), Some(least)) = (vertices().max_by_key(rank), vertices().min_by_key(rank)) else { panic!("no vertices") };
        let bits = ranking.ranks[most].swap(rank(&least), Relaxed);
        ranking.ranks[least].store(bits, Relaxed);
        iterated.hash = ranking.check(1).ranks;
        let wrong = ranking.check(1).wrong(&iterated, &graph);
        assert!(wrong.len() == 1 && wrong[0].starts_with("one more iteration"), "{wrong:?}");
    }

    #[test]
    fn the_check_finds_a_graph_that_changed() {
        let graph = made(RECIPE, 1);
        let other = made(Recipe { seed: 3, ..RECIPE }, 1);
        let ranking = ranking_of(&graph);
        let iterated = ranking.iterate(10, 1);
        let check = ranking.check(1);
        assert!(check.wrong(&iterated, &graph).is_empty());
        assert!(check.wrong(&iterated, &other).iter().any(|wrong| wrong.starts_with("the graph's hash")));
    }
}
