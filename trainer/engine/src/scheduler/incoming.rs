//! Reception of broadcast weights: one broadcast for each tensor, or one for a bucket of tensors.
//!
//! ```text
//!  bucket, uint8  [ bytes of tensor 0 │ bytes of tensor 1 │ … ]   without padding
//! ```

use rljob_collective::Group;
use rljob_protocol::sglang::{FLATTENED_BUCKET, UpdateWeightsFromDistributed};
use tch::{Device, Kind, TchError, Tensor};

use crate::weights::Weights;

/// Rank of the sender in every process group.
const SENDER: u32 = 0;

/// An announced tensor.
struct Item {
    name: String,
    /// Its place in the weights.
    view: Tensor,
    /// Its type in the broadcast.
    kind: Kind,
}

/// Announced tensors that match the model.
pub struct Incoming {
    items: Vec<Item>,
    bucketed: bool,
}

impl Incoming {
    /// Checks an announcement; the error says what does not match the model.
    pub fn of(update: &UpdateWeightsFromDistributed, weights: &Weights) -> Result<Self, String> {
        let (names, dtypes, shapes) = (&update.names, &update.dtypes, &update.shapes);
        if names.len() != dtypes.len() || names.len() != shapes.len() {
            let (names, dtypes, shapes) = (names.len(), dtypes.len(), shapes.len());
            return Err(format!("{names} names, {dtypes} dtypes and {shapes} shapes"));
        }
        let bucketed = match update.load_format.as_deref() {
            None => false,
            Some(FLATTENED_BUCKET) if names.is_empty() => {
                return Err("Cannot create empty tensor bucket".to_owned());
            }
            Some(FLATTENED_BUCKET) => true,
            Some(other) => {
                return Err(format!("load_format `{other}`, expected {FLATTENED_BUCKET}"));
            }
        };
        let item = |((name, dtype), shape): ((&String, &String), &Vec<i64>)| {
            let kind = match dtype.as_str() {
                "float32" => Kind::Float,
                "bfloat16" => Kind::BFloat16,
                _ => {
                    return Err(format!(
                        "tensor `{name}` has dtype `{dtype}`, expected float32 or bfloat16"
                    ));
                }
            };
            let view = weights.view_of_shape(name, shape).map_err(|error| error.to_string())?;
            Ok(Item { name: name.clone(), view: view.shallow_clone(), kind })
        };
        let items = names.iter().zip(dtypes).zip(shapes).map(item).collect::<Result<_, _>>()?;
        Ok(Self { items, bucketed })
    }

    /// Receives the tensors into the weights.
    pub fn receive(&self, group: &Group) -> Result<(), String> {
        if self.bucketed {
            return self.receive_bucket(group);
        }
        self.items.iter().try_for_each(|item| {
            item.receive(group).map_err(|message| format!("tensor `{}`: {message}", item.name))
        })
    }

    fn receive_bucket(&self, group: &Group) -> Result<(), String> {
        let torch = |error: TchError| error.to_string();
        let sizes: Vec<i64> = self.items.iter().map(Item::bytes).collect();
        let bucket = Tensor::f_zeros([sizes.iter().sum()], (Kind::Uint8, Device::Cpu));
        let bucket = bucket.map_err(torch)?;
        group.broadcast(&bucket, SENDER).map_err(|error| error.to_string())?;
        let parts = bucket.f_split_with_sizes(sizes.as_slice(), 0).map_err(torch)?;
        self.items.iter().zip(&parts).try_for_each(|(item, bytes)| item.copy(bytes)).map_err(torch)
    }
}

impl Item {
    fn bytes(&self) -> i64 {
        (self.view.numel() * self.kind.elt_size_in_bytes()) as i64
    }

    /// Receives directly, or through a copy if the type differs.
    fn receive(&self, group: &Group) -> Result<(), String> {
        if self.view.kind() == self.kind {
            return group.broadcast(&self.view, SENDER).map_err(|error| error.to_string());
        }
        let staging = Tensor::f_zeros(self.view.size(), (self.kind, Device::Cpu));
        let staging = staging.map_err(|error| error.to_string())?;
        group.broadcast(&staging, SENDER).map_err(|error| error.to_string())?;
        self.view.shallow_clone().f_copy_(&staging).map(drop).map_err(|error| error.to_string())
    }

    fn copy(&self, bytes: &Tensor) -> Result<(), TchError> {
        let received = bytes.f_view_dtype(self.kind)?.f_view(self.view.size().as_slice())?;
        self.view.shallow_clone().f_copy_(&received).map(drop)
    }
}
