//! Independent work on several threads: files, hashes, copies between host and GPU.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

/// Threads at most: more do not read files or copy from a GPU faster.
const THREADS: usize = 8;

/// Applies `work` to every item, on as many threads as the machine has cores and at most
/// [`THREADS`]. The results are in the order of the items.
///
/// # Errors
/// The error of the first item that has one; the others are finished.
pub fn map<T: Send, U: Send, E: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> Result<U, E> + Sync,
) -> Result<Vec<U>, E> {
    let threads = available_parallelism().map_or(1, NonZero::get).min(THREADS).min(items.len());
    if threads < 2 {
        return items.into_iter().map(work).collect();
    }
    let (queue, done) = (Mutex::new(items.into_iter().enumerate()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((index, item)) = next else { return };
                    let result = work(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::map;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let squares = map((0..100).collect(), |number: i32| Ok::<_, ()>(number * number));
        assert_eq!(squares, Ok((0..100).map(|number| number * number).collect()));
        assert_eq!(map(Vec::new(), |(): ()| Ok::<_, ()>(())), Ok(Vec::new()));
    }

    #[test]
    fn the_first_error_is_returned() {
        let odd = |number: i32| if number % 2 == 0 { Ok(number) } else { Err(number) };
        assert_eq!(map((0..100).map(|index| index * 2 + index / 50).collect(), odd), Err(101));
    }
}
