//! Buckets on a real S3 server.

#[cfg(test)]
mod objects;
