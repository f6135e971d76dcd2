//! Axis of a chart: positions of values, ticks and labels. Pure.

/// Scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Values must be above 0.
    Logarithmic,
}

impl Scale {
    /// Whether the scale can show the value.
    pub fn has(self, value: f64) -> bool {
        value.is_finite() && (self == Self::Linear || value > 0.0)
    }
}

/// An axis from `low` to `high`, which differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Axis {
    /// Linear axis with these ends.
    pub fn between(low: f64, high: f64) -> Self {
        Self { low, high: if high > low { high } else { low + 1.0 }, scale: Scale::Linear }
    }

    /// Axis that fits data from `low` to `high`. Linear: with padding that does not cross zero
    /// unless the data do. Logarithmic: from a power of ten to a power of ten.
    pub fn around(low: f64, high: f64, scale: Scale) -> Self {
        if scale == Scale::Logarithmic {
            let (low, high) = (low.log10().floor(), high.log10().ceil());
            return Self { low: 10f64.powf(low), high: 10f64.powf(high.max(low + 1.0)), scale };
        }
        let padding = if high > low { (high - low) * 0.08 } else { low.abs().max(1e-6) * 0.5 };
        let floor = if low >= 0.0 { (low - padding).max(0.0) } else { low - padding };
        let ceiling = if high <= 0.0 { (high + padding).min(0.0) } else { high + padding };
        Self::between(floor, ceiling)
    }

    /// First and last value.
    pub fn ends(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// Position of the value, from 0 at `low` to 1 at `high`.
    pub fn share(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => (value / self.low).log10() / (self.high / self.low).log10(),
        }
    }

    /// About `count` round values: 1, 2 or 5 times a power of ten apart, or powers of ten.
    pub fn ticks(&self, count: u32) -> Vec<f64> {
        match self.scale {
            Scale::Linear => round_numbers(self.low, self.high, count),
            Scale::Logarithmic => {
                let (first, last) =
                    (self.low.log10().round() as i32, self.high.log10().round() as i32);
                let stride = last.abs_diff(first).div_ceil(count).max(1) as usize;
                (first..=last).step_by(stride).map(|exponent| 10f64.powi(exponent)).collect()
            }
        }
    }
}

fn round_numbers(low: f64, high: f64, count: u32) -> Vec<f64> {
    let rough = (high - low) / f64::from(count);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(rough);
    let first = (low / step - 1e-9).ceil();
    (0..=count.saturating_mul(2))
        .map(|index| (first + f64::from(index)) * step)
        .take_while(|tick| *tick <= high + step * 1e-9)
        .collect()
}

/// Label of a tick, as short as possible.
pub fn label(value: f64) -> String {
    let value = if value.abs() < 1e-15 { 0.0 } else { value };
    match value.abs() {
        0.0 => "0".to_owned(),
        size if (1e-3..1e4).contains(&size) => {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        size if (1e4..1e6).contains(&size) => format!("{}k", (value / 100.0).round() / 10.0),
        _ => format!("{value:.1e}").replace(".0e", "e"),
    }
}

/// Text of a value, about four digits. `readout.js` uses the same format.
pub fn reading(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if !(1e-3..1e6).contains(&size) => format!("{value:.1e}"),
        size if size >= 1e3 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_inside_the_range() {
        assert_eq!(Axis::between(0.0, 1.0).ticks(4), [0.0, 0.5, 1.0]);
        assert_eq!(Axis::between(0.0, 50.0).ticks(6), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        assert_eq!(Axis::between(-3.0, 9.0).ticks(4), [0.0, 5.0]);
    }

    #[test]
    fn a_logarithmic_axis_spans_decades_and_maps_equal_ratios_to_equal_distances() {
        let axis = Axis::around(3e-7, 2e-5, Scale::Logarithmic);
        let shares: Vec<i64> =
            [1e-7, 1e-6, 1e-4].map(|value| (axis.share(value) * 3e6).round() as i64).to_vec();
        assert_eq!(shares, [0, 1_000_000, 3_000_000]);
        assert_eq!(
            axis.ticks(5).into_iter().map(label).collect::<Vec<_>>(),
            ["1e-7", "1e-6", "1e-5", "1e-4"]
        );
        assert_eq!(Axis::around(1.0, 1.0, Scale::Logarithmic).ends(), (1.0, 10.0));
        assert!(
            !Scale::Logarithmic.has(0.0) && Scale::Linear.has(0.0) && !Scale::Linear.has(f64::NAN)
        );
    }

    #[test]
    fn labels_are_short_at_every_size() {
        let labels: Vec<String> =
            [0.0, 0.5, 20.0, -0.25, 12345.0, 2e-7, 1.5e-5, 3e7].map(label).to_vec();
        assert_eq!(labels, ["0", "0.5", "20", "-0.25", "12.3k", "2e-7", "1.5e-5", "3e7"]);
    }

    #[test]
    fn a_reading_has_about_four_digits() {
        let readings: Vec<String> =
            [0.0, -0.001_23, 0.931_64, 12.5, 6405.9885, 3.4e-7, 2e6].map(reading).to_vec();
        assert_eq!(readings, ["0", "-0.0012", "0.9316", "12.50", "6406", "3.4e-7", "2.0e6"]);
    }
}
