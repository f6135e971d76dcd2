//! What a run says on the terminal, as text. Pure.

use std::fmt::Write;

use rljob_protocol::metrics::{self, EvaluationMetrics, StepMetrics};
use rljob_protocol::status::{CoordinatorStatus, Phase};

use super::RunArgs;

/// One line a step: step, reward, loss, KL, entropy, clip fraction, mismatch mean/max, speed. What
/// the algorithm does not have is left out.
pub fn step(step: &StepMetrics, total_steps: u32) -> String {
    let scalars = &step.scalars;
    let mut line = counter("step", step.step, total_steps);
    if let Some(reward) = step.get(metrics::REWARD) {
        push(&mut line, "reward", &format!("{reward:.3}"));
    }
    let components: Vec<_> = scalars.reward_components().collect();
    if components.len() > 1 {
        for (name, mean) in components {
            push(&mut line, name, &format!("{mean:.3}"));
        }
    }
    push(&mut line, "loss", &format!("{:>8}", significant(scalars.get_or_zero(metrics::LOSS))));
    if let Some(kl) = step.get(metrics::KL) {
        push(&mut line, "kl", &format!("{kl:.1e}"));
    }
    push(&mut line, "entropy", &format!("{:.3}", scalars.get_or_zero(metrics::ENTROPY)));
    if let Some(clip_fraction) = step.get(metrics::CLIP_FRACTION) {
        push(&mut line, "clip", &format!("{clip_fraction:.3}"));
    }
    let mismatch = step.get(metrics::MISMATCH_MEAN).zip(step.get(metrics::MISMATCH_MAX));
    if let Some((mean, max)) = mismatch {
        push(&mut line, "mismatch", &format!("{mean:.1e}/{max:.1e}"));
    }
    let _ = write!(line, "  {:.0} tok/s", scalars.get_or_zero(metrics::TOKENS_PER_SECOND));
    let skipped = scalars.get_or_zero(metrics::SKIPPED);
    if skipped > 0.0 {
        let _ = write!(line, "  {skipped} updates skipped: loss or gradient not finite");
    }
    line
}

/// One line an evaluation.
pub fn evaluation(metrics: &EvaluationMetrics, total_steps: u32) -> String {
    let mut line = counter("eval", metrics.step, total_steps);
    if let (Some(sampled), Some(greedy)) = (metrics.sampled, metrics.greedy) {
        push(&mut line, "accuracy", &format!("{sampled:.3} sampled  {greedy:.3} greedy"));
    }
    if let Some(loss) = metrics.loss {
        push(&mut line, "loss", &significant(loss));
    }
    let _ = write!(line, "  ({} prompts, {:.1} s)", metrics.prompts, metrics.seconds);
    line
}

/// What the run is doing, in a few words.
pub fn phase(status: Option<&CoordinatorStatus>) -> String {
    let Some(status) = status else { return "waiting for the coordinator".to_owned() };
    match status.phase {
        Phase::Starting => {
            status.download.as_ref().map_or("starting".to_owned(), ToString::to_string)
        }
        Phase::Running => status
            .metrics
            .as_ref()
            .and_then(|metrics| metrics.get(metrics::REWARD))
            .map_or("running".to_owned(), |reward| format!("reward {reward:.3}")),
        Phase::Restarting => format!(
            "restarting the learners (attempt {}, {} counted)",
            status.attempt, status.restarts
        ),
        Phase::Draining => "draining".to_owned(),
        Phase::Drained => "drained".to_owned(),
        Phase::Finished => "finished".to_owned(),
        Phase::Failed => "failed".to_owned(),
    }
}

/// The last line of a job that ended or was stopped, for example `sums: 30 steps, reward 0.41 ->
/// 0.95, accuracy 0.38 -> 0.93 (greedy 0.97 -> 0.98), 84 s`.
pub fn summary(
    name: &str,
    steps: &[StepMetrics],
    evaluations: &[EvaluationMetrics],
    seconds: f64,
) -> String {
    let done = steps.last().map_or(0, |last| last.step);
    let mut line = format!("{name}: {done} steps");
    let rewards: Vec<f64> = steps.iter().filter_map(|step| step.get(metrics::REWARD)).collect();
    let loss = |step: &StepMetrics| step.get(metrics::LOSS);
    if let (Some(first), Some(last)) = (rewards.first(), rewards.last()) {
        push_change(&mut line, "reward", *first, *last);
    } else if let Some((first, last)) =
        steps.first().and_then(loss).zip(steps.last().and_then(loss))
    {
        push_change(&mut line, "loss", first, last);
    }
    if let (Some(first), Some(last)) = (evaluations.first(), evaluations.last()) {
        if let (Some(sampled), Some(greedy)) =
            (first.sampled.zip(last.sampled), first.greedy.zip(last.greedy))
        {
            push_change(&mut line, "accuracy", sampled.0, sampled.1);
            let _ = write!(line, " (greedy {:.3} -> {:.3})", greedy.0, greedy.1);
        }
        if let Some((first, last)) = first.loss.zip(last.loss) {
            push_change(&mut line, "validation loss", first, last);
        }
    }
    let _ = write!(line, ", {seconds:.0} s");
    line
}

/// A text in one line of at most 600 characters.
pub fn one_line(text: &str) -> String {
    let line =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" | ");
    match line.char_indices().nth(600) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The command that goes on with a run.
pub fn command(args: &RunArgs) -> String {
    let mut line = format!("rljob run -f {}", quoted(&args.file.to_string_lossy()));
    for set in &args.set {
        let _ = write!(line, " --set {}", quoted(set));
    }
    let _ = write!(line, " --dir {}", quoted(&args.dir.to_string_lossy()));
    if args.use_bucket {
        line.push_str(" --use-bucket");
    }
    if let Some(command) = &args.engine_command {
        let _ = write!(line, " --engine-command {}", quoted(command));
    }
    line
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn counter(what: &str, step: u32, total: u32) -> String {
    let width = total.to_string().len();
    format!("{what} {step:>width$}/{total}")
}

fn push(line: &mut String, name: &str, value: &str) {
    let _ = write!(line, "  {name} {value}");
}

fn push_change(line: &mut String, name: &str, first: f64, last: f64) {
    let _ = write!(line, ", {name} {first:.3} -> {last:.3}");
}

/// Four decimals, or an exponent where they would show nothing.
fn significant(value: f64) -> String {
    if value == 0.0 || (value.abs() >= 1e-3 && value.abs() < 1e5) {
        format!("{value:.4}")
    } else {
        format!("{value:.1e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grpo() -> StepMetrics {
        StepMetrics::with_scalars(
            7,
            [
                (metrics::REWARD, 0.5),
                (metrics::LOSS, -0.000_012),
                (metrics::KL, 0.000_34),
                (metrics::ENTROPY, 0.845),
                (metrics::CLIP_FRACTION, 0.012),
                (metrics::MISMATCH_MEAN, 1.2e-7),
                (metrics::MISMATCH_MAX, 3.4e-6),
                (metrics::TOKENS_PER_SECOND, 1234.5),
            ],
        )
    }

    #[test]
    fn a_step_is_one_line_with_what_the_algorithm_has() {
        let line = "step  7/30  reward 0.500  loss  -1.2e-5  kl 3.4e-4  entropy 0.845  clip 0.012  mismatch 1.2e-7/3.4e-6  1234 tok/s";
        assert_eq!(step(&grpo(), 30), line);
        let sft = StepMetrics::with_scalars(
            300,
            [
                (metrics::LOSS, 1.25),
                (metrics::ENTROPY, 0.5),
                (metrics::TOKENS_PER_SECOND, 9.0),
                (metrics::SKIPPED, 1.0),
            ],
        );
        assert_eq!(
            step(&sft, 300),
            "step 300/300  loss   1.2500  entropy 0.500  9 tok/s  1 updates skipped: loss or gradient not finite"
        );
    }

    #[test]
    fn an_evaluation_is_one_line() {
        let metrics = EvaluationMetrics {
            step: 0,
            prompts: 256,
            sampled: Some(0.375),
            greedy: Some(0.9),
            seconds: 1.25,
            ..Default::default()
        };
        assert_eq!(
            evaluation(&metrics, 30),
            "eval  0/30  accuracy 0.375 sampled  0.900 greedy  (256 prompts, 1.2 s)"
        );
        let both = EvaluationMetrics { loss: Some(2.5), ..metrics.clone() };
        assert_eq!(
            evaluation(&both, 30),
            "eval  0/30  accuracy 0.375 sampled  0.900 greedy  loss 2.5000  (256 prompts, 1.2 s)"
        );
        let loss = EvaluationMetrics { sampled: None, greedy: None, ..both };
        assert_eq!(evaluation(&loss, 30), "eval  0/30  loss 2.5000  (256 prompts, 1.2 s)");
    }

    #[test]
    fn the_summary_goes_from_first_to_last() {
        let mut last = StepMetrics { step: 30, ..grpo() };
        last.scalars.set(metrics::REWARD, 0.95);
        let steps = [grpo(), last];
        let evaluations = [(0, 0.375), (30, 0.9375)].map(|(step, sampled)| EvaluationMetrics {
            step,
            sampled: Some(sampled),
            greedy: Some(0.5),
            ..Default::default()
        });
        let expected = "sums: 30 steps, reward 0.500 -> 0.950, accuracy 0.375 -> 0.938 (greedy 0.500 -> 0.500), 84 s";
        assert_eq!(summary("sums", &steps, &evaluations, 84.2), expected);
        let losses = [2.75, 0.5]
            .map(|loss| EvaluationMetrics { loss: Some(loss), ..EvaluationMetrics::default() });
        assert_eq!(
            summary("sums", &[], &losses, 1.0),
            "sums: 0 steps, validation loss 2.750 -> 0.500, 1 s"
        );
        assert_eq!(summary("sums", &[], &[], 0.0), "sums: 0 steps, 0 s");
    }

    #[test]
    fn a_cause_of_many_lines_becomes_one() {
        assert_eq!(one_line("exit code 1:\n  out of memory\n\n"), "exit code 1: | out of memory");
        assert_eq!(one_line(&"é".repeat(700)).chars().count(), 601);
    }

    #[test]
    fn the_command_to_go_on_can_be_pasted() {
        let set = vec![
            "spec.training.steps=3".to_owned(),
            "a:spec.dataset.train.prompt={{x}} it's".to_owned(),
        ];
        let args = RunArgs {
            file: "job.yaml".into(),
            set,
            dir: "runs".into(),
            use_bucket: true,
            engine_command: Some("python3 -m sglang.launch_server".to_owned()),
        };
        let expected = r"rljob run -f job.yaml --set spec.training.steps=3 --set 'a:spec.dataset.train.prompt={{x}} it'\''s' --dir runs --use-bucket --engine-command 'python3 -m sglang.launch_server'";
        assert_eq!(command(&args), expected);
    }
}
