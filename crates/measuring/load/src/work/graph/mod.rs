//! A graph in compressed sparse rows (CSR): an offset for each vertex into one array of neighbours.
//!
//! The neighbours of `v` are `neighbours[offsets[v]..offsets[v + 1]]`, ascending, each once, `v` not among them. Each edge
//! is there in both directions. So much is checked where a graph comes from a file; where it is made, [`build`] sees to it.
//!
//! | module | what is there |
//! |---|---|
//! | [`kronecker`] | which edges there are: the generator of the GAP Benchmark Suite |
//! | [`build`] | from edges to CSR, twice through the generator in place of a stored list |
//! | [`file`] | a graph in a file |

mod build;
mod file;
mod kronecker;

use std::ops::Range;
use std::path::Path;
use std::thread;

use farshore_load::workload::Search;
use kronecker::Kronecker;

use super::scatter::mix2;

/// What a graph is made from: the same recipe makes the same graph, whatever the number of threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recipe {
    /// Vertices as a power of two, at most 31.
    pub scale: u32,
    /// Edges drawn for each vertex.
    pub degree: u32,
    /// Where the random numbers start.
    pub seed: u64,
}

/// An undirected graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Graph {
    recipe: Recipe,
    /// One more than there are vertices; the first is 0.
    offsets: Vec<u64>,
    neighbours: Vec<u32>,
    /// [`Graph::hash`], as it was when the graph was made.
    hash: u64,
}

impl Graph {
    /// Makes the graph of `recipe`.
    ///
    /// # Errors
    /// If the kernel does not give that much memory.
    pub fn make(recipe: Recipe, threads: usize) -> Result<Self, String> {
        build::build(&Kronecker::new(recipe), threads)
    }

    /// Reads the graph of `recipe` from `path`; if nothing is there, makes it and writes it there.
    ///
    /// # Errors
    /// If the file is not that graph, whole and right, or cannot be read or written.
    pub fn from_file(path: &Path, recipe: Recipe, threads: usize) -> Result<Self, String> {
        if let Some(graph) = file::read(path, recipe, threads)? {
            return Ok(graph);
        }
        file::check_directory(path)?;
        let graph = Graph::make(recipe, threads)?;
        file::write(path, &graph)?;
        Ok(graph)
    }

    /// A graph of parts that are right, with their hash.
    fn new(recipe: Recipe, offsets: Vec<u64>, neighbours: Vec<u32>, threads: usize) -> Self {
        let mut graph = Graph { recipe, offsets, neighbours, hash: 0 };
        graph.hash = graph.hash_now(threads);
        graph
    }

    /// How many vertices there are.
    #[must_use]
    pub fn vertices(&self) -> usize {
        self.offsets.len() - 1
    }

    /// How many entries all lists have together: each edge counts twice.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.neighbours.len()
    }

    /// Memory of both arrays, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (size_of_val(&*self.offsets) + size_of_val(&*self.neighbours)) as u64
    }

    /// Where in the array the neighbours of `vertex` are.
    #[must_use]
    pub fn places(&self, vertex: usize) -> Range<usize> {
        index(self.offsets[vertex])..index(self.offsets[vertex + 1])
    }

    /// The neighbours of `vertex`.
    #[must_use]
    pub fn neighbours(&self, vertex: usize) -> &[u32] {
        &self.neighbours[self.places(vertex)]
    }

    /// How many neighbours `vertex` has.
    #[must_use]
    pub fn degree(&self, vertex: usize) -> u64 {
        self.offsets[vertex + 1] - self.offsets[vertex]
    }

    /// Ranges of vertices, in order, about `count` of them, with about the same number of edges and vertices in each.
    #[must_use]
    pub fn balanced(&self, count: usize) -> Vec<Range<usize>> {
        // A vertex without edges is some work too.
        let weight = |vertex: usize| self.offsets[vertex] + vertex as u64;
        let all = u128::from(weight(self.vertices()));
        let count = count.max(1) as u128;
        let mut cuts: Vec<usize> = (0..=count).map(|n| self.first_of_weight(all * n / count, weight)).collect();
        cuts.dedup();
        cuts.windows(2).map(|cut| cut[0]..cut[1]).collect()
    }

    /// The first vertex whose weight, which ascends, is not less than `wanted`.
    fn first_of_weight(&self, wanted: u128, weight: impl Fn(usize) -> u64) -> usize {
        let (mut low, mut high) = (0, self.vertices());
        while low < high {
            let middle = low.midpoint(high);
            if u128::from(weight(middle)) < wanted { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The hash when the graph was made: a sum over all entries of both arrays, in any order.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The hash of what is in memory now.
    fn hash_now(&self, threads: usize) -> u64 {
        let parts = self.balanced(threads);
        thread::scope(|scope| {
            let running: Vec<_> = parts.into_iter().map(|vertices| scope.spawn(move || self.hash_of(vertices))).collect();
            running.into_iter().map(joined).fold(0, u64::wrapping_add)
        })
    }

    /// What these vertices and their entries add to the hash.
    #[must_use]
    pub fn hash_of(&self, vertices: Range<usize>) -> u64 {
        let entries = index(self.offsets[vertices.start])..index(self.offsets[vertices.end]);
        let offsets = vertices.map(|vertex| self.hash_of_offset(vertex)).fold(0, u64::wrapping_add);
        let entries = entries.map(|place| hash_of_entry(place, self.neighbours[place]));
        entries.fold(offsets, u64::wrapping_add)
    }

    /// What the offset of `vertex` (where its neighbours begin) adds to the hash.
    #[must_use]
    pub fn hash_of_offset(&self, vertex: usize) -> u64 {
        mix2(!(vertex as u64), self.offsets[vertex])
    }
}

/// The graph that a search asks for: from its file, or made.
///
/// # Errors
/// If it does not fit, or cannot be read or written.
pub fn of(args: &Search, threads: usize) -> Result<Graph, String> {
    let recipe = Recipe { scale: args.graph_scale()?, degree: args.degree, seed: args.common.seed };
    match &args.graph {
        Some(path) => Graph::from_file(path, recipe, threads),
        None => Graph::make(recipe, threads),
    }
}

/// What an entry of the array of neighbours adds to the hash.
#[must_use]
pub fn hash_of_entry(place: usize, neighbour: u32) -> u64 {
    mix2(place as u64, u64::from(neighbour))
}

/// An offset as an index: the array is in memory, so that its indices are below `usize::MAX`.
#[expect(clippy::cast_possible_truncation)]
fn index(offset: u64) -> usize {
    offset as usize
}

/// A vector of `count` elements, with room for one more.
///
/// # Errors
/// If the kernel does not give that much memory.
pub fn vector<T>(count: usize, element: impl Fn() -> T) -> Result<Vec<T>, String> {
    let mut vector = Vec::new();
    let bytes = || (count as u64).saturating_mul(size_of::<T>() as u64);
    let refused =
        |_| format!("cannot allocate {} MiB: the kernel refuses it (see ulimit -v); take a smaller graph", bytes() >> 20);
    vector.try_reserve_exact(count.saturating_add(1)).map_err(refused)?;
    vector.extend((0..count).map(|_| element()));
    Ok(vector)
}

/// The result of a thread; its panic goes on here.
pub fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn made(recipe: Recipe, threads: usize) -> Graph {
        Graph::make(recipe, threads).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn memory_that_cannot_be_had_is_said() {
        let said = vector(usize::MAX / 8, || 0_u64).expect_err("more than there are addresses");
        assert!(said.contains("MiB") && !said.contains('\n'), "{said}");
    }

    /// The same, as simply as it can be said.
    fn naive(recipe: Recipe) -> Vec<BTreeSet<u32>> {
        let generator = Kronecker::new(recipe);
        let mut lists = vec![BTreeSet::new(); generator.vertices()];
        for block in 0..generator.blocks() {
            generator.block(block, |u, v| {
                if u != v {
                    lists[u as usize].insert(v);
                    lists[v as usize].insert(u);
                }
            });
        }
        lists
    }

    #[test]
    fn a_graph_is_that_of_its_edges_for_any_number_of_threads() {
        for (scale, degree, seed) in [(4, 1, 1), (5, 200, 2), (10, 16, 3), (14, 20, 4)] {
            let recipe = Recipe { scale, degree, seed };
            let lists = naive(recipe);
            for threads in [1, 2, 7] {
                let graph = made(recipe, threads);
                assert_eq!(graph.vertices(), lists.len());
                assert_eq!(graph.entries(), lists.iter().map(BTreeSet::len).sum::<usize>());
                for (vertex, list) in lists.iter().enumerate() {
                    assert!(graph.neighbours(vertex).iter().eq(list), "{recipe:?}, {threads} threads, vertex {vertex}");
                    assert_eq!(graph.degree(vertex), list.len() as u64);
                }
                assert!(
                    graph.bytes() + 8 * graph.vertices() as u64 <= farshore_load::workload::Pagerank::most_bytes(scale, degree)
                );
                assert_eq!(graph, made(recipe, 3), "hashes too");
            }
        }
    }

    #[test]
    fn another_seed_is_another_graph() {
        let graph = |seed| made(Recipe { scale: 8, degree: 4, seed }, 2);
        assert_ne!(graph(1).hash(), graph(2).hash());
        assert_ne!(graph(1).neighbours, graph(2).neighbours);
    }

    #[test]
    fn the_hash_sees_each_change() {
        let graph = made(Recipe { scale: 6, degree: 4, seed: 1 }, 1);
        assert_eq!(graph.hash_now(4), graph.hash());
        let mut other = graph.clone();
        other.neighbours[7] ^= 1;
        assert_ne!(other.hash_now(2), graph.hash());
        let mut other = graph.clone();
        other.neighbours.swap(1, 2);
        assert_ne!(other.hash_now(2), graph.hash());
        let mut other = graph.clone();
        other.offsets[5] += 1;
        assert_ne!(other.hash_now(2), graph.hash());
    }

    #[test]
    fn balanced_ranges_hold_each_vertex_once_and_the_same_work() {
        let graph = made(Recipe { scale: 12, degree: 16, seed: 1 }, 2);
        let work = |range: &Range<usize>| range.clone().map(|vertex| graph.degree(vertex) + 1).sum::<u64>();
        let largest = (0..graph.vertices()).map(|vertex| graph.degree(vertex) + 1).max().unwrap_or(0);
        for count in [1, 2, 3, 50, 100_000] {
            let ranges = graph.balanced(count);
            assert!(ranges.len() <= count);
            assert!(ranges.iter().cloned().flatten().eq(0..graph.vertices()), "{count}");
            let all = work(&(0..graph.vertices()));
            assert!(ranges.iter().all(|range| work(range) <= all / count as u64 + largest + 1), "{count}");
        }
    }
}
