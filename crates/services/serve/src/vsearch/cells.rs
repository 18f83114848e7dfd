//! The centroids of the cells, by k-means (Lloyd's rounds) over a sample.
//!
//! What comes out follows from the sample alone: threads share out the comparisons, and sums are added up by one of them, in the order of the sample.

use std::num::NonZero;
use std::ops::Range;
use std::thread;

use farshore_load::vectors::distance;

/// Rounds. Centroids hardly move after so many, and an inverted file wants cells of like size, not the best ones.
const ROUNDS: usize = 8;

/// As many threads as there are processors for this program.
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Calls `work` in `threads` threads, each with a part of the numbers below `count`. What they tell comes in the order of the parts.
pub fn in_parts<T: Send>(count: usize, threads: usize, work: impl Fn(Range<usize>) -> T + Sync) -> Vec<T> {
    let share = count.div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        let work = &work;
        let part = |start: usize| scope.spawn(move || work(start..count.min(start + share)));
        let running: Vec<_> = (0..count).step_by(share).map(part).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// The number of the nearest centroid; the first of those that are as near.
pub fn nearest(centroids: &[f32], stride: usize, vector: &[f32]) -> usize {
    let mut best = (f32::INFINITY, 0);
    for (number, centroid) in centroids.chunks_exact(stride).enumerate() {
        let far = distance(centroid, vector);
        if far < best.0 {
            best = (far, number);
        }
    }
    best.1
}

/// `count` centroids for the vectors of `sample`, which are as many at least. They begin as vectors of the sample; one that no vector is nearest to stays.
pub fn centroids(sample: &[f32], stride: usize, count: usize, threads: usize) -> Vec<f32> {
    let many = sample.len() / stride;
    let vector = |number: usize| &sample[number * stride..][..stride];
    let mut centroids: Vec<f32> = (0..count).flat_map(|number| vector(number * many / count)).copied().collect();
    for _ in 0..ROUNDS {
        let cell = |part: Range<usize>| part.map(|number| nearest(&centroids, stride, vector(number))).collect::<Vec<_>>();
        let cells = in_parts(many, threads, cell).concat();
        let (mut sums, mut counts) = (vec![0.0_f64; count * stride], vec![0_u32; count]);
        for (number, cell) in cells.iter().enumerate() {
            counts[*cell] += 1;
            let sum = &mut sums[cell * stride..][..stride];
            sum.iter_mut().zip(vector(number)).for_each(|(sum, number)| *sum += f64::from(*number));
        }
        let cells = centroids.chunks_exact_mut(stride).zip(sums.chunks_exact(stride)).zip(&counts);
        for ((centroid, sum), count) in cells.filter(|(_, count)| **count > 0) {
            centroid.iter_mut().zip(sum).for_each(|(mean, sum)| *mean = (*sum / f64::from(*count)) as f32);
        }
    }
    centroids
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three heaps of points around 0, 100 and 200.
    fn heaps() -> Vec<f32> {
        (0..90_u8).flat_map(|number| [f32::from(number / 30) * 100.0 + f32::from(number % 3); 8]).collect()
    }

    #[test]
    fn centroids_go_where_vectors_are() {
        let centroids = centroids(&heaps(), 8, 3, 2);
        let mut places: Vec<f32> = centroids.chunks_exact(8).map(|centroid| centroid[0]).collect();
        places.sort_by(f32::total_cmp);
        assert_eq!(places, [1.0, 101.0, 201.0]);
        assert!(centroids.chunks_exact(8).all(|centroid| centroid.iter().all(|number| *number == centroid[0])));
    }

    #[test]
    fn the_number_of_threads_makes_no_difference() {
        let sample: Vec<f32> = (0..4000_u32).map(|number| (crate::numbers::value(number.into()) >> 40) as f32 / 7.0).collect();
        let one = centroids(&sample, 8, 20, 1);
        for threads in [2, 3, 700] {
            assert_eq!(centroids(&sample, 8, 20, threads), one);
        }
    }

    #[test]
    fn parts_are_all_there_is() {
        for (count, threads) in [(0, 3), (1, 3), (7, 3), (9, 3), (10, 100)] {
            let all = in_parts(count, threads, Iterator::collect::<Vec<_>>).concat();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }
}
