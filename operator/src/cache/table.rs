//! Objects of one kind by name, each in its newest known version: from the watch, from lists, and
//! from responses to the operator's own writes.
//!
//! Versions never decrease: events of a slow watch and entries of an old list are ignored for
//! objects that were written since (KEP-5504: versions of one resource are comparable).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Namespace and name.
pub type Name = (String, String);

#[derive(Debug)]
pub struct Table<V> {
    objects: HashMap<Name, (u64, Arc<V>)>,
    /// During a list: the names that it or a write has contained since its start.
    listing: Option<HashSet<Name>>,
    /// Whether a list was ever completed.
    pub listed: bool,
    /// Whether passes start without a list.
    pub skipped: bool,
    /// The highest version of any object.
    pub highest: u64,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { objects: HashMap::new(), listing: None, listed: false, skipped: false, highest: 0 }
    }
}

impl<V> Table<V> {
    pub fn get(&self, name: &Name) -> Option<&Arc<V>> {
        self.objects.get(name).map(|(_, value)| value)
    }

    /// Stores an object at a version. Returns the object that it replaces.
    ///
    /// # Errors
    /// [`Older`] if the known version is newer.
    pub fn put(&mut self, name: Name, version: u64, value: V) -> Result<Option<Arc<V>>, Older> {
        if let Some(listing) = &mut self.listing {
            listing.insert(name.clone());
        }
        self.highest = self.highest.max(version);
        match self.objects.get(&name) {
            Some((known, _)) if *known > version => Err(Older),
            _ => Ok(self.objects.insert(name, (version, Arc::new(value))).map(|(_, old)| old)),
        }
    }

    /// Removes an object that was deleted at a version, and returns it, unless the known version is
    /// newer.
    pub fn remove(&mut self, name: &Name, version: u64) -> Option<Arc<V>> {
        match self.objects.get(name) {
            Some((known, _)) if *known <= version => self.objects.remove(name).map(|(_, old)| old),
            _ => None,
        }
    }

    pub fn begin_list(&mut self) {
        self.listing = Some(HashSet::new());
    }

    /// Completes a list: removes and returns the objects that neither it nor a write since its
    /// start has named. Objects written since its start are newer than the list and stay.
    pub fn end_list(&mut self) -> Vec<(Name, Arc<V>)> {
        self.listed = true;
        let Some(named) = self.listing.take() else { return Vec::new() };
        self.objects
            .extract_if(|name, _| !named.contains(name))
            .map(|(name, (_, old))| (name, old))
            .collect()
    }
}

/// The known version is newer.
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
    fn events_older_than_the_last_write_are_ignored() {
        let mut table = Table::default();
        assert_eq!(table.put(name("a"), 5, "first version"), Ok(None));
        assert_eq!(table.put(name("a"), 9, "written"), Ok(Some(Arc::new("first version"))));
        assert_eq!(table.put(name("a"), 7, "an old event"), Err(Older));
        assert_eq!(
            table.remove(&name("a"), 8),
            None,
            "the deletion of another object of this name"
        );
        assert_eq!(get(&table, "a"), Some("written"));
        assert_eq!(table.remove(&name("a"), 10), Some(Arc::new("written")));
        assert_eq!(get(&table, "a"), None);
    }

    #[test]
    fn a_list_removes_objects_that_it_lacks_unless_they_were_written_meanwhile() {
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
