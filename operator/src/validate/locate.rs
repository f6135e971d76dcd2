//! Line of a path in YAML text: parses the document up to the path, fails there on purpose, and
//! takes the position from the error.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Line, from 1, of `path` in a document; for a missing field the line of its parent.
pub(super) fn line_of(text: &str, document: usize, path: &str) -> Option<usize> {
    let document = serde_yaml::Deserializer::from_str(text).nth(document)?;
    let error: serde_yaml::Error = Walk { rest: path }.deserialize(document).err()?;
    error.location().map(|location| location.line())
}

/// Follows the rest of the path and fails at its end.
struct Walk<'p> {
    rest: &'p str,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the end of the path")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(rest) = map.next_key_seed(Key { rest: self.rest })? {
            match rest {
                Some(rest) => return map.next_value_seed(Walk { rest }),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Err(A::Error::custom("here"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let found = self.rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        if let Some((index, rest)) = found {
            for _ in 0..index.parse::<usize>().unwrap_or(0) {
                seq.next_element::<IgnoredAny>()?;
            }
            seq.next_element_seed(Walk { rest: rest.strip_prefix('.').unwrap_or(rest) })?;
        }
        Err(A::Error::custom("here"))
    }
}

/// A key: fails if it ends the path; else returns the rest of the path below it, if any.
struct Key<'p> {
    rest: &'p str,
}

impl<'de, 'p> DeserializeSeed<'de> for Key<'p> {
    type Value = Option<&'p str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'p> Visitor<'_> for Key<'p> {
    type Value = Option<&'p str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        match self.rest.strip_prefix(key) {
            Some("") => Err(E::custom("here")),
            Some(rest) if rest.starts_with('[') => Ok(Some(rest)),
            Some(rest) => Ok(rest.strip_prefix('.')),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::line_of;

    #[test]
    fn a_path_has_the_line_of_its_key_or_of_its_parent() {
        let text = "a: 1\n---\nspec:\n  model:\n    path: x\n  volumes:\n  - {name: a}\n  - name: \
            b\n    limits: {cpu: 1, nvidia.com/gpu: 2}\n";
        for (path, line) in [
            ("spec", 3),
            ("spec.model", 4),
            ("spec.model.path", 5),
            ("spec.volumes[0].name", 7),
            ("spec.volumes[1]", 8),
            ("spec.volumes[1].limits.nvidia.com/gpu", 9),
            ("spec.model.missing", 5),
        ] {
            assert_eq!(line_of(text, 1, path), Some(line), "{path}");
        }
    }
}
