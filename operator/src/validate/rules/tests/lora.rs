//! Rules of adapters.

use serde_json::json;

use super::problems_with;

#[test]
fn adapters_need_pretrained_weights_and_each_target_once() {
    assert_eq!(problems_with(&json!({"lora": {}})), Vec::<String>::new());
    let lora = json!({"targets": ["QProj", "VProj", "QProj"]});
    assert_eq!(
        problems_with(&json!({"lora": lora, "model": {"weights": "Random"}})),
        [
            "spec.lora: needs model.weights Pretrained: adapters of random weights fit no other \
                model",
            "spec.lora.targets[2]: QProj is a duplicate",
        ]
    );
}
