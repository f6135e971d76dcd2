//! Section with rollouts of the first, middle and last step. Pure.

use std::fmt::Write;

use super::html::escape;
use crate::local::records::SampleLine;

/// Rollouts per step.
const PER_STEP: usize = 6;

/// Renders the section; empty without samples.
pub fn render(samples: &[SampleLine]) -> String {
    let steps = chosen(samples);
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
fn chosen(samples: &[SampleLine]) -> Vec<u32> {
    let mut steps: Vec<u32> = samples.iter().map(|sample| sample.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let mut chosen: Vec<u32> = [0, steps.len() / 2, steps.len().saturating_sub(1)]
        .into_iter()
        .filter_map(|index| steps.get(index).copied())
        .collect();
    chosen.dedup();
    chosen
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
        let sample = |step| SampleLine {
            step,
            prompt: "1+1=".to_owned(),
            completion: "2".to_owned(),
            reward: 1.0,
            answer: None,
        };
        let of = |steps: &[u32]| chosen(&steps.iter().copied().map(sample).collect::<Vec<_>>());
        assert_eq!(of(&[]), Vec::<u32>::new());
        assert_eq!(of(&[4, 4]), [4]);
        assert_eq!(of(&[1, 2]), [1, 2]);
        assert_eq!(of(&[1, 1, 2, 3, 4, 5]), [1, 3, 5]);
    }
}
