//! Section with rollouts of the first, middle and last step. Pure.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::html::escape;
use crate::local::records::SampleLine;

/// Rollouts per step.
pub const PER_STEP: usize = 6;

/// Renders the section; empty without samples.
pub fn render(samples: &[SampleLine]) -> String {
    let steps: BTreeSet<u32> = samples.iter().map(|sample| sample.step).collect();
    if steps.is_empty() {
        return String::new();
    }
    let mut out = "<section>\n<h2>Rollouts</h2>\n".to_owned();
    for step in steps {
        let _ = writeln!(out, "<h3>Step {step}</h3>\n<div class=\"samples\">");
        for sample in samples.iter().filter(|sample| sample.step == step).take(PER_STEP) {
            card(&mut out, sample);
        }
        out.push_str("</div>\n");
    }
    out.push_str("</section>\n");
    out
}

/// First, middle and last step, without duplicates.
pub fn shown_steps(steps: &BTreeSet<u32>) -> impl Iterator<Item = u32> {
    let last = steps.len().saturating_sub(1);
    let shown = BTreeSet::from([0, steps.len() / 2, last]);
    steps.iter().copied().enumerate().filter(move |(index, _)| shown.contains(index)).map(|it| it.1)
}

fn card(out: &mut String, sample: &SampleLine) {
    let class = if sample.reward >= 1.0 {
        "good"
    } else if sample.reward > 0.0 {
        "open"
    } else {
        "bad"
    };
    let answer = sample
        .answer
        .as_ref()
        .map(|answer| format!(" <span class=\"answer\">answer {}</span>", escape(answer)))
        .unwrap_or_default();
    let _ = writeln!(
        out,
        "<article><p><span class=\"badge {class}\">reward {}</span>{answer}</p><pre><span \
            class=\"prompt\">{}</span>{}</pre></article>",
        (sample.reward * 1000.0).round() / 1000.0,
        escape(&sample.prompt),
        escape(&sample.completion),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_middle_and_last_steps_are_shown() {
        let of =
            |steps: &[u32]| -> Vec<u32> { shown_steps(&steps.iter().copied().collect()).collect() };
        assert_eq!(of(&[]), Vec::<u32>::new());
        assert_eq!(of(&[4, 4]), [4]);
        assert_eq!(of(&[1, 2]), [1, 2]);
        assert_eq!(of(&[1, 1, 2, 3, 4, 5]), [1, 3, 5]);
    }
}
