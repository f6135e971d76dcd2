//! Objects of one kind by name, the newest version of each that is known: from the watch, from
//! lists, and from the answers to one's own writes.
//!
//! A version never goes back: what a slow watch or an old list says of an object that was written
//! since is passed over (KEP-5504: versions of one resource compare).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Namespace and name.
pub type Name = (String, String);

/// The objects of one kind.
#[derive(Debug)]
pub struct Table<V> {
    objects: HashMap<Name, (u64, Arc<V>)>,
    /// While a list comes in: what it or a write has named since it began.
    listing: Option<HashSet<Name>>,
    /// Whether a list was ever complete.
    pub listed: bool,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { objects: HashMap::new(), listing: None, listed: false }
    }
}

impl<V> Table<V> {
    /// The newest that is known.
    pub fn get(&self, name: &Name) -> Option<&Arc<V>> {
        self.objects.get(name).map(|(_, value)| value)
    }

    /// An object as it was at a version. Gives what it replaces; none if what is known is newer.
    pub fn put(&mut self, name: Name, version: u64, value: V) -> Result<Option<Arc<V>>, Older> {
        if let Some(listing) = &mut self.listing {
            listing.insert(name.clone());
        }
        match self.objects.get(&name) {
            Some((known, _)) if *known > version => Err(Older),
            _ => Ok(self.objects.insert(name, (version, Arc::new(value))).map(|(_, old)| old)),
        }
    }

    /// An object was gone at a version. Gives what it was; none if what is known is newer.
    pub fn remove(&mut self, name: &Name, version: u64) -> Option<Arc<V>> {
        match self.objects.get(name) {
            Some((known, _)) if *known <= version => self.objects.remove(name).map(|(_, old)| old),
            _ => None,
        }
    }

    /// A list begins.
    pub fn begin_list(&mut self) {
        self.listing = Some(HashSet::new());
    }

    /// The list is complete: what neither it nor a write since its beginning has named, is gone.
    /// What was written since is later than the list and stays.
    pub fn end_list(&mut self) -> Vec<(Name, Arc<V>)> {
        self.listed = true;
        let Some(named) = self.listing.take() else { return Vec::new() };
        self.objects
            .extract_if(|name, _| !named.contains(name))
            .map(|(name, (_, old))| (name, old))
            .collect()
    }
}

/// What was to be put is older than what is known.
#[derive(Debug, PartialEq, Eq)]
pub struct Older;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Name {
        ("lab".to_owned(), name.to_owned())
    }

    fn get(table: &Table<&'static str>, of: &str) -> Option<&'static str> {
        table.get(&name(of)).map(|value| **value)
    }

    #[test]
    fn an_own_write_is_not_forgotten_for_what_a_slow_watch_still_says() {
        let mut table = Table::default();
        assert_eq!(table.put(name("a"), 5, "as first seen"), Ok(None));
        assert_eq!(table.put(name("a"), 9, "as written"), Ok(Some(Arc::new("as first seen"))));
        assert_eq!(table.put(name("a"), 7, "an old event"), Err(Older));
        assert_eq!(table.remove(&name("a"), 8), None, "the end of another object of this name");
        assert_eq!(get(&table, "a"), Some("as written"));
        assert_eq!(table.remove(&name("a"), 10), Some(Arc::new("as written")));
        assert_eq!(get(&table, "a"), None);
    }

    #[test]
    fn a_list_takes_away_what_it_does_not_name_but_not_what_was_written_meanwhile() {
        let mut table = Table::default();
        table.put(name("gone"), 1, "gone").unwrap();
        table.put(name("kept"), 2, "kept").unwrap();
        table.begin_list();
        table.put(name("kept"), 2, "kept").unwrap();
        table.put(name("made"), 8, "made after the list was read").unwrap();
        assert!(!table.listed);
        assert_eq!(table.end_list(), [(name("gone"), Arc::new("gone"))]);
        assert!(table.listed);
        assert_eq!(
            (get(&table, "kept"), get(&table, "made")),
            (Some("kept"), Some("made after the list was read"))
        );
    }
}
