//! Tests of the report.

use super::*;

fn report() -> Report {
    let step = |step: u32| {
        StepMetrics::with_scalars(
            step,
            [
                (metrics::REWARD, 0.3 + 0.01 * f64::from(step)),
                ("reward/correct", 0.3),
                ("reward/format", 0.01 * f64::from(step)),
                (metrics::LOSS, -0.01 / f64::from(step)),
                (metrics::KL, 1e-4),
                (metrics::ENTROPY, 1.0 / f64::from(step)),
                (metrics::CLIP_FRACTION, 0.02),
                (metrics::MISMATCH_MEAN, 1e-7),
                (metrics::MISMATCH_MAX, 1e-6),
                (metrics::GRADIENT_NORM, 0.5),
                (metrics::TOKENS_PER_SECOND, 900.0 + f64::from(step)),
            ],
        )
    };
    Report {
        name: "sums".to_owned(),
        outcome: Outcome::Finished,
        spec: "model:\n  path: /models/tiny\n".to_owned(),
        total_steps: 50,
        metrics: (1..=50).map(step).collect(),
        evaluations: [(0, 0.4), (25, 0.7), (50, 0.93)]
            .map(|(step, sampled)| EvaluationMetrics {
                step,
                sampled: Some(sampled),
                greedy: Some(0.95),
                prompts: 256,
                seconds: 1.0,
                ..Default::default()
            })
            .to_vec(),
        samples: [1, 25, 50]
            .map(|step| SampleLine {
                step,
                prompt: "27+58=".to_owned(),
                completion: "085".to_owned(),
                reward: 1.0,
                answer: Some("085".to_owned()),
            })
            .to_vec(),
    }
}

#[test]
fn a_report_contains_all_charts_samples_and_the_spec() {
    let html = render(&report());
    let title = |chart: &str| format!("<h2>{chart}</h2>");
    for chart in [
        "Reward",
        "Evaluation accuracy",
        "Loss",
        "KL",
        "Entropy",
        "Clip fraction",
        "Engine–learner mismatch",
        "Gradient norm",
        "Speed",
        "Reward components",
    ] {
        assert!(html.contains(&title(chart)), "{chart}");
    }
    for text in [
        "<h1>sums</h1>",
        "50 of 50 steps",
        "0.400 → 0.930",
        "<h3>Step 25</h3>",
        "<span class=\"prompt\">27+58=</span>085",
        "  path: /models/tiny",
    ] {
        assert!(html.contains(text), "{text}");
    }
}

#[test]
fn a_report_needs_no_network() {
    let html = render(&report());
    for reference in ["http:", "https:", "//cdn", " src=", " href=", "@import", "url("] {
        assert!(!html.contains(reference), "{reference}");
    }
}

#[test]
fn output_of_models_is_escaped() {
    let mut report = report();
    let hostile = "</pre><script>alert(\"1\")</script>'\u{202e}";
    report.name = hostile.to_owned();
    report.spec = hostile.to_owned();
    report.outcome = Outcome::Failed(hostile.to_owned());
    report.samples = vec![SampleLine {
        step: 1,
        prompt: hostile.to_owned(),
        completion: hostile.to_owned(),
        reward: 0.0,
        answer: Some(hostile.to_owned()),
    }];
    let html = render(&report);
    assert_eq!(html.matches("<script>").count(), 1, "only the script of the report");
    assert_eq!(
        html.matches("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&#39;\u{fffd}").count(),
        7
    );
}

#[test]
fn a_report_without_steps_says_so() {
    let empty = Report {
        outcome: Outcome::Interrupted,
        metrics: vec![],
        evaluations: vec![],
        samples: vec![],
        ..report()
    };
    let html = render(&empty);
    assert!(
        html.contains("No step is done yet.")
            && html.contains("0 of 50 steps")
            && !html.contains("<svg")
    );
}

#[test]
fn the_security_policy_allows_the_style_and_the_script_of_the_report_only() {
    let html = render(&report());
    let between = |start: &str, end: &str| {
        let (_, rest) = html.split_once(start).unwrap();
        rest.split_once(end).unwrap().0
    };
    let policy = between("http-equiv=\"Content-Security-Policy\" content=\"", "\"");
    let hash = |text: &str| BASE64.encode(Sha256::digest(text));
    let expected = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        hash(between("<style>", "</style>")),
        hash(between("<script>", "</script>")),
    );
    assert_eq!(policy, expected);
    assert!(html.find("Content-Security-Policy") < html.find("<style>"));
    for blocked in [" style=\"", " onclick", " onload", "javascript:"] {
        assert!(!html.contains(blocked), "the policy blocks {blocked}");
    }
}
