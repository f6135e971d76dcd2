//! Pods of SGLang's engines.

use super::*;

#[test]
fn an_sglang_engine_reads_its_keys_from_a_file() {
    let mut job = validated();
    job.spec.inference = sglang(2, &["--mem-fraction-static=0.8"]);
    let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), &job.uid);
    let Resources { secret, stateful_sets, .. } =
        build(&job, WantedRoles::Everything, &settings(), &tokens, &Pinned::default());
    let config = &secret.data.unwrap()["sglang.yaml"].0;
    assert_eq!(
        String::from_utf8_lossy(config),
        format!("api-key: \"{}\"\nadmin-api-key: \"{}\"\n", tokens.engine_api, tokens.engine_admin)
    );
    let pod = pod_of(&stateful_sets[0]);
    insta::assert_yaml_snapshot!("sglang_container", pod.containers[0]);
    let text = serde_json::to_string(&stateful_sets).unwrap();
    assert!(!text.contains(&tokens.engine_api) && !text.contains(&tokens.engine_admin));
}

#[test]
fn an_sglang_engine_waits_for_the_export_of_another_job() {
    let mut job = validated();
    job.spec.inference = sglang(1, &[]);
    job.spec.model = serde_json::from_value(serde_json::json!({"rljob": {"name": "sft"}})).unwrap();
    let template = pod::build_template(&job, Role::Inference, &settings());
    let command = template.spec.unwrap().containers[0].command.clone().unwrap();
    let marker = "/rljob/runs/lab/sft/export/complete.json";
    assert_eq!(
        (command[0].as_str(), command[3].as_str(), command[4].as_str()),
        ("sh", marker, "python3"),
        "{command:?}"
    );
}
