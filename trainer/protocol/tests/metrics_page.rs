//! `docs/metrics.md` is generated from the registry: `UPDATE=1 cargo test -p rljob-protocol`.

use std::fmt::Write;
use std::path::PathBuf;

use rljob_protocol::metrics::{MIXTURE_PREFIX, REGISTRY, REWARD_COMPONENT_PREFIX, Source};

const HEAD: &str = "\
# Metrics of a step

A line of `metrics.jsonl` in the run directory is one step: `step`, `attempt`, `staleness` (number
of samples by steps between the weights that sampled them and the weights that are trained) and the
scalars below. TensorBoard files have all of them, `rljob report` the most important ones. A scalar
that an algorithm does not have is absent.

An objective or a reward adds a scalar by adding its name to
`trainer/protocol/src/metrics/registry.rs`, from which this page is generated. *Since* is the
protocol version: older processes do not receive the scalar.

| Name | Unit | Meaning | Computed by | Since |
|---|---|---|---|---|
";

#[test]
fn the_page_of_metrics_lists_the_registry() {
    let mut page = HEAD.to_owned();
    for metric in REGISTRY {
        let source = match metric.source {
            Source::Learner => "learners",
            Source::Coordinator => "coordinator",
        };
        writeln!(
            page,
            "| `{}` | {} | {} | {source} | {} |",
            metric.name,
            metric.unit,
            metric.description.replace('|', "\\|"),
            metric.since
        )
        .unwrap();
    }
    writeln!(
        page,
        "| `{REWARD_COMPONENT_PREFIX}NAME` | 1 | Mean of the unweighted reward `NAME` of \
         `spec.rewards`, or of a component `NAME/PART` of its verifier. | coordinator | 2 |"
    )
    .unwrap();
    writeln!(
        page,
        "| `{MIXTURE_PREFIX}NAME` | 1 | Share of the part `NAME` of `dataset.train.mixture` in the \
         step's prompts. | coordinator | 3 |"
    )
    .unwrap();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), page, "run it with UPDATE=1");
}
