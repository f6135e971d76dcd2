//! A member of a process group, with the checks and errors of groups of every transport.

use tch::Tensor;

use crate::CollectiveError;

/// A member of process group `name`.
#[derive(Debug)]
pub struct Member {
    pub name: String,
    pub rank: u32,
    pub world_size: u32,
}

impl Member {
    /// Joins by `connect`; `way` says how in an error, for example `from 10.0.0.1`.
    ///
    /// # Errors
    /// The rank is not below the world size, or `connect` fails.
    pub fn join<T>(
        self,
        way: &str,
        connect: impl FnOnce() -> Result<T, String>,
    ) -> Result<(Self, T), CollectiveError> {
        let connected = if self.rank < self.world_size {
            connect()
        } else {
            Err("the rank must be below the world size".to_owned())
        };
        match connected {
            Ok(handle) => Ok((self, handle)),
            Err(message) => Err(CollectiveError {
                operation: format!("join process group `{}` {way}", self.name),
                place: format!("rank {} of {}", self.rank, self.world_size),
                message,
            }),
        }
    }

    /// Checks that `whole` has a `part` for each rank.
    ///
    /// # Errors
    /// Kinds or sizes do not match, or a tensor is not contiguous.
    pub fn check_sizes(
        &self,
        operation: &str,
        whole: &Tensor,
        part: &Tensor,
    ) -> Result<(), CollectiveError> {
        let contiguous = whole.is_contiguous() && part.is_contiguous();
        let same_kind = whole.kind() == part.kind();
        if contiguous && same_kind && whole.numel() == part.numel() * self.world_size as usize {
            return Ok(());
        }
        let message = format!(
            "whole {whole:?} and part {part:?} must be contiguous, of one kind, \
             and whole must be {} times as long as part",
            self.world_size
        );
        self.result(operation.to_owned(), Err(message))
    }

    /// The result of an operation on a tensor.
    ///
    /// # Errors
    /// The operation failed.
    pub fn of_tensor(
        &self,
        operation: &str,
        tensor: &Tensor,
        result: Result<(), String>,
    ) -> Result<(), CollectiveError> {
        let operation = || format!("{operation} {:?} {:?}", tensor.kind(), tensor.size());
        if result.is_ok() { Ok(()) } else { self.result(operation(), result) }
    }

    /// The result of an operation.
    ///
    /// # Errors
    /// The operation failed.
    pub fn result(
        &self,
        operation: String,
        result: Result<(), String>,
    ) -> Result<(), CollectiveError> {
        result.map_err(|message| CollectiveError {
            operation,
            place: format!(
                "rank {} of {} in process group `{}`",
                self.rank, self.world_size, self.name
            ),
            message,
        })
    }
}
