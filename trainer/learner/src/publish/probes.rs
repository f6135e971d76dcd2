//! Choice of the elements by which engines are checked after an update (docs/decisions/0047).
//!
//! ```text
//!  every publication: first row of small tensors ─▶ compared with those of the previous one
//!                     ─▶ a vector and a matrix that changed, from another layer at each step
//! ```
//! SGLang converts a whole tensor to read a part of it, so that only small ones are read: norms,
//! and the projections of keys. An element that changed tells new weights from old ones.

use rljob_protocol::probe::WeightProbe;
use tch::{Device, Kind, TchError, Tensor};

use crate::model::ModelConfig;

/// Most elements of a probe.
const ELEMENTS: usize = 8;
/// Longest part of a row that is compared, in elements.
const LONGEST: i64 = 4096;
const NORM: &str = "norm.weight";
const KEYS: &str = "k_proj.weight";

/// First row of a tensor, on the host.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: String,
    is_vector: bool,
    values: Vec<f32>,
}

/// Chooses elements, and remembers the rows of the last publication of this process.
#[derive(Debug, Default)]
pub struct Probes {
    previous: Vec<Row>,
}

impl Probes {
    /// Elements of `tensors`, all of a model in order. `turn` decides with which layer the search
    /// begins. Waits for the device once.
    ///
    /// # Errors
    /// libtorch cannot copy the rows.
    pub fn choose(
        &mut self,
        tensors: &[(String, Tensor)],
        config: &ModelConfig,
        turn: usize,
    ) -> Result<Vec<WeightProbe>, TchError> {
        let current = read(tensors, config)?;
        let probes = choose(&self.previous, &current, turn);
        self.previous = current;
        Ok(probes)
    }
}

/// The rows that engines can be asked for.
fn read(tensors: &[(String, Tensor)], config: &ModelConfig) -> Result<Vec<Row>, TchError> {
    // SGLang takes this size of a head for granted where it finds the keys in its fused matrix.
    let has_keys = config.head_dim * config.num_attention_heads == config.hidden_size;
    let wanted = |name: &str| name.ends_with(NORM) || has_keys && name.ends_with(KEYS);
    let tensors = tensors.iter().filter(|(name, _)| wanted(name));
    let tensors: Vec<&(String, Tensor)> = tensors.collect();
    let rows = tensors.iter().map(|(_, tensor)| first_row(tensor));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let all = Tensor::f_cat(&rows, 0)?.f_to_kind(Kind::Float)?.f_to_device(Device::Cpu)?;
    let all = Vec::<f32>::try_from(&all)?;
    let mut rest = all.as_slice();
    let row = |((name, tensor), row): (&&(String, Tensor), &Tensor)| {
        let (values, after) = rest.split_at(row.numel());
        rest = after;
        Row { name: name.clone(), is_vector: tensor.dim() == 1, values: values.to_vec() }
    };
    Ok(tensors.iter().zip(&rows).map(row).collect())
}

fn first_row(tensor: &Tensor) -> Result<Tensor, TchError> {
    let row = if tensor.dim() == 1 { tensor.shallow_clone() } else { tensor.f_get(0)? };
    let length = row.numel() as i64;
    row.f_narrow(0, 0, length.min(LONGEST))
}

/// A vector and a matrix, with elements that changed if one has some.
fn choose(previous: &[Row], current: &[Row], turn: usize) -> Vec<WeightProbe> {
    let of_form = |is_vector: bool| {
        let rows: Vec<&Row> = current.iter().filter(|row| row.is_vector == is_vector).collect();
        let turned = rows.iter().cycle().skip(turn % rows.len().max(1)).take(rows.len());
        let changed = turned.clone().find_map(|row| probe(row, changes(previous, row)));
        changed.or_else(|| turned.clone().find_map(|row| probe(row, 0..row.values.len())))
    };
    [true, false].into_iter().filter_map(of_form).collect()
}

/// Positions at which a row differs from the one of the previous publication.
fn changes<'a>(previous: &'a [Row], row: &'a Row) -> impl Iterator<Item = usize> + 'a {
    let before = previous.iter().find(|before| before.name == row.name);
    let before = before.map_or(&[][..], |before| before.values.as_slice());
    let differ = |(before, now): (&f32, &f32)| before.to_bits() != now.to_bits();
    before
        .iter()
        .zip(&row.values)
        .enumerate()
        .filter(move |(_, values)| differ(*values))
        .map(|(position, _)| position)
}

/// The first of these positions whose elements are finite; JSON has no others.
fn probe(row: &Row, positions: impl Iterator<Item = usize>) -> Option<WeightProbe> {
    let finite = positions.filter(|position| row.values[*position].is_finite());
    let positions: Vec<usize> = finite.take(ELEMENTS).collect();
    let last = positions.last()?;
    Some(WeightProbe {
        name: row.name.clone(),
        entries: if row.is_vector { *last as u32 + 1 } else { 1 },
        values: positions.iter().map(|position| row.values[*position]).collect(),
        positions: positions.iter().map(|position| *position as u32).collect(),
    })
}

#[cfg(test)]
mod tests {
    use rljob_protocol::probe::WeightProbe;
    use tch::{Kind, Tensor};

    use super::{Probes, Row, choose, probe};
    use crate::model::ModelConfig;
    use crate::model::hugging_face::named_tensors;
    use crate::publish::tests::source;

    fn row(name: &str, is_vector: bool, values: &[f32]) -> Row {
        Row { name: name.to_owned(), is_vector, values: values.to_vec() }
    }

    fn of(name: &str, entries: u32, positions: &[u32], values: &[f32]) -> WeightProbe {
        let (positions, values) = (positions.to_vec(), values.to_vec());
        WeightProbe { name: name.to_owned(), entries, positions, values }
    }

    #[test]
    fn elements_that_changed_are_chosen_from_another_layer_at_each_turn() {
        let rows = |a: &[f32], b: &[f32], key: &[f32]| {
            vec![row("a", true, a), row("b", true, b), row("k", false, key)]
        };
        let before = rows(&[1.0, 2.0], &[3.0, 4.0], &[5.0, 6.0, 7.0]);
        let after = rows(&[1.0, 2.5], &[3.5, 4.5], &[5.0, 6.0, 7.5]);
        let key = of("k", 1, &[2], &[7.5]);
        assert_eq!(choose(&before, &after, 0), [of("a", 2, &[1], &[2.5]), key.clone()]);
        assert_eq!(choose(&before, &after, 3), [of("b", 2, &[0, 1], &[3.5, 4.5]), key]);
        let unchanged = [of("b", 2, &[0, 1], &[3.5, 4.5]), of("k", 1, &[0, 1, 2], &[5., 6., 7.5])];
        assert_eq!(choose(&after, &after, 1), unchanged);
        assert_eq!(choose(&[], &after, 1), unchanged, "the first publication");
        let second = rows(&[1.0, 2.0], &[3.0, 4.5], &[5.0, 6.0, 7.0]);
        assert_eq!(choose(&before, &second, 0)[0], of("b", 2, &[1], &[4.5]), "a did not change");
        assert_eq!(choose(&[], &[], 1), []);
    }

    #[test]
    fn a_probe_has_finite_elements_and_a_limit() {
        let values: Vec<f32> = (0..20).map(|value| value as f32).collect();
        let found = probe(&row("v", true, &values), 5..20).unwrap();
        assert_eq!((found.entries, found.positions.len(), found.values[7]), (13, 8, 12.0));
        let row = row("v", true, &[f32::NAN, 1.0, f32::INFINITY]);
        assert_eq!(probe(&row, 0..3), Some(of("v", 2, &[1], &[1.0])));
        assert_eq!(probe(&row, 0..1), None);
    }

    #[test]
    fn rows_of_a_model_are_those_of_its_norms_and_keys() {
        let (source, layout, blocks) = source();
        let config = ModelConfig::from_folder(source.path()).unwrap();
        let tensors = |factor: f64| {
            let blocks: Vec<Tensor> =
                blocks.iter().map(|block| (block * factor).to_kind(Kind::BFloat16)).collect();
            named_tensors(&layout, &blocks)
        };
        let mut probes = Probes::default();
        let first = probes.choose(&tensors(1.0), &config, 0).unwrap();
        let names: Vec<&str> = first.iter().map(|probe| probe.name.as_str()).collect();
        let norm = "model.layers.0.input_layernorm.weight";
        assert_eq!(names, [norm, "model.layers.0.self_attn.k_proj.weight"]);
        let second = probes.choose(&tensors(2.0), &config, 1).unwrap();
        assert_eq!(second[0].name, "model.layers.0.post_attention_layernorm.weight");
        let doubled: Vec<f32> = first[1].values.iter().map(|value| value * 2.0).collect();
        assert_eq!((second[1].entries, &second[1].values), (1, &doubled));
        let other = ModelConfig { head_dim: 4, ..config };
        assert_eq!(probes.choose(&tensors(3.0), &other, 0).unwrap().len(), 1, "norms only");
    }
}
