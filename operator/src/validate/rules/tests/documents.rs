//! YAML in the documentation.

use serde_json::{Value, json};

use super::problems_with;
use crate::validate::test_support::{merge, minimal};
use crate::validate::warnings::warnings;

#[test]
fn every_block_of_the_pages_of_algorithms_and_workflows_is_valid_and_has_an_effect() {
    let pages = [
        include_str!("../../../../../docs/algorithms.md"),
        include_str!("../../../../../docs/workflows.md"),
    ];
    let blocks = pages.iter().flat_map(|page| page.split("```yaml\n").skip(1));
    let blocks: Vec<&str> = blocks.map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() > 11, "{blocks:?}");
    for block in blocks {
        let mut spec: Value = serde_yaml::from_str(block).unwrap();
        let has = |spec: &Value, name: &str| !spec["algorithm"][name].is_null();
        if ["dpo", "orpo", "rewardModel"].iter().any(|name| has(&spec, name)) {
            let mut pairs = json!({
                "dataset": {"train": {"chosen": "{{good}}", "rejected": "{{bad}}"}},
                "rewards": [],
                "inference": {"replicas": 0},
                "weightSync": {"method": null},
            });
            merge(&mut pairs, &spec);
            spec = pairs;
        }
        if !spec["algorithm"]["distillation"]["offPolicy"].is_null() {
            let mut given = json!({"rewards": [], "weightSync": {"method": null}});
            merge(&mut given, &spec);
            spec = given;
        }
        if ["ppo", "dpo", "orpo", "rewardModel", "distillation"].iter().any(|name| has(&spec, name))
        {
            // The minimal job sets `grpo`.
            spec["algorithm"]["grpo"] = Value::Null;
        }
        assert_eq!(problems_with(&spec), Vec::<String>::new(), "{block}");
        let mut job = serde_json::to_value(minimal()).unwrap();
        merge(&mut job, &json!({ "spec": spec }));
        let job: rljob_crds::RLJob = serde_json::from_value(job).unwrap();
        let found: Vec<String> = warnings(&job.spec).iter().map(ToString::to_string).collect();
        assert_eq!(found, Vec::<String>::new(), "{block}");
    }
}
