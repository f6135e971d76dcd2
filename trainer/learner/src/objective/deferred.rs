//! Sums over tokens that stay on a GPU until they are read, so that no micro-batch waits for it.

use tch::{Device, Kind, Tensor};

/// A number in fp64 of the host, or of a GPU that may not have computed it yet.
#[derive(Debug)]
pub enum Deferred {
    Host(f64),
    /// A tensor without dimensions.
    Gpu(Tensor),
}

impl Deferred {
    /// The sum of all elements.
    pub fn sum(values: &Tensor) -> Self {
        Self::of(&values.sum(Kind::Double))
    }

    /// The largest element; 0 without elements.
    pub fn max(values: &Tensor) -> Self {
        if values.numel() == 0 { Self::default() } else { Self::of(&values.max()) }
    }

    fn of(value: &Tensor) -> Self {
        if value.device() == Device::Cpu {
            Self::Host(value.double_value(&[]))
        } else {
            Self::Gpu(value.to_kind(Kind::Double))
        }
    }

    /// A tensor without dimensions on `device`.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn on(&self, device: Device) -> Result<Tensor, tch::TchError> {
        match self {
            Self::Host(value) => Tensor::f_full([], *value, (Kind::Double, device)),
            Self::Gpu(value) => value.f_to_device(device),
        }
    }

    /// The number; waits for a GPU.
    pub fn value(&self) -> f64 {
        match self {
            Self::Host(value) => *value,
            Self::Gpu(value) => value.double_value(&[]),
        }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Host(one), Self::Host(other)) => Self::Host(one + other),
            (Self::Host(host), Self::Gpu(gpu)) | (Self::Gpu(gpu), Self::Host(host)) => {
                Self::Gpu(gpu + host)
            }
            (Self::Gpu(one), Self::Gpu(other)) => Self::Gpu(one + other),
        }
    }

    /// The larger one; a number if the other is NaN.
    #[must_use]
    pub fn larger(self, other: Self) -> Self {
        match (self, other) {
            (Self::Host(one), Self::Host(other)) => Self::Host(one.max(other)),
            (Self::Host(host), Self::Gpu(gpu)) | (Self::Gpu(gpu), Self::Host(host)) => {
                let host = gpu.full_like(host);
                Self::Gpu(gpu.fmax(&host))
            }
            (Self::Gpu(one), Self::Gpu(other)) => Self::Gpu(one.fmax(&other)),
        }
    }

    /// Brings numbers to the host with one wait and one copy for each GPU's numbers.
    pub fn read<'a>(numbers: impl IntoIterator<Item = &'a mut Self>) {
        let of_gpu = |number: &'a mut Self| match number {
            Self::Host(_) => None,
            Self::Gpu(value) => {
                let value = value.shallow_clone();
                Some((number, value))
            }
        };
        let (numbers, values): (Vec<_>, Vec<_>) = numbers.into_iter().filter_map(of_gpu).unzip();
        if values.is_empty() {
            return;
        }
        let values = Tensor::stack(&values, 0).to_device(Device::Cpu);
        for (index, number) in numbers.into_iter().enumerate() {
            *number = Self::Host(values.double_value(&[index as i64]));
        }
    }
}

#[cfg(test)]
impl PartialEq for Deferred {
    fn eq(&self, other: &Self) -> bool {
        self.value() == other.value()
    }
}

impl Default for Deferred {
    fn default() -> Self {
        Self::Host(0.0)
    }
}

impl From<f64> for Deferred {
    fn from(value: f64) -> Self {
        Self::Host(value)
    }
}

#[cfg(test)]
mod tests {
    use super::Deferred;
    use tch::Tensor;

    /// As if a GPU had computed it.
    fn pending(value: f64) -> Deferred {
        Deferred::Gpu(Tensor::from(value))
    }

    #[test]
    fn pending_numbers_add_and_compare_like_those_of_the_host() {
        let kinds: [fn(f64) -> Deferred; 2] = [Deferred::from, pending];
        for (one, other) in kinds.iter().flat_map(|one| kinds.map(|other| (one, other))) {
            let sum = one(0.1).plus(other(0.2)).value();
            let larger = [(1.0, 2.0), (2.0, 1.0), (f64::NAN, 1.0), (1.0, f64::NAN)]
                .map(|(first, second)| one(first).larger(other(second)).value());
            assert_eq!((sum, larger), (0.1 + 0.2, [2.0, 2.0, 1.0, 1.0]));
        }
    }

    #[test]
    fn reading_brings_all_numbers_to_the_host() {
        let mut numbers = [pending(1.5), Deferred::from(-2.0), pending(f64::INFINITY)];
        Deferred::read(&mut numbers);
        let host = numbers.map(|number| match number {
            Deferred::Host(value) => value,
            Deferred::Gpu(value) => panic!("{value:?} is not read"),
        });
        assert_eq!(host.to_vec(), vec![1.5, -2.0, f64::INFINITY]);
    }

    #[test]
    fn numbers_of_tensors_of_the_host_are_read_at_once() {
        let values = Tensor::from_slice(&[1.0_f32, -2.0, 0.5]);
        let found = [
            Deferred::sum(&values),
            Deferred::max(&values),
            Deferred::max(&values.narrow(0, 0, 0)),
        ];
        let host = found.map(|number| matches!(number, Deferred::Host(_)).then(|| number.value()));
        assert_eq!(host, [Some(-0.5), Some(1.0), Some(0.0)]);
    }
}
