//! Tests of paths into objects of rows, and of fields that rewards receive.

use rljob_crds::data::TrainDataset;
use serde_json::{Value, json};

use super::{File, tokenizer};
use crate::data::{Dataset, KeptFields};

/// A row as verl's data have it.
const ROW: &str = "{\"data_source\": \"gsm8k\", \"prompt\": [{\"role\": \"user\", \"content\": \
    \"1+1?\"}], \"reward_model\": {\"ground_truth\": \"2\"}, \"extra_info\": {\"index\": 7, \
    \"rate\": 0.5}}\n";

/// Opens a row with settings; the path is replaced by FILE in errors.
fn open(row: &str, spec: &Value) -> Result<Dataset, String> {
    let file = File::new(row);
    let spec: TrainDataset = serde_json::from_value(spec.clone()).unwrap();
    let spec = TrainDataset { path: Some(file.path()), ..spec };
    Dataset::open_train(&spec, &tokenizer(), 1, &KeptFields::None)
        .map_err(|error| crate::error_line(&error).replace(&file.path(), "FILE"))
}

#[test]
fn settings_name_fields_of_objects_by_paths() {
    let spec = json!({
        "conversation": {"messages": "prompt"},
        "answer": "reward_model.ground_truth",
        "passRate": {"field": "extra_info.rate", "max": 0.6},
        "rewardFields": ["data_source", "extra_info.index"],
    });
    let data = open(ROW, &spec).unwrap();
    let prompt = data.prompt(0).unwrap();
    assert_eq!((prompt.text.as_str(), prompt.answer.as_deref()), ("1+1?", Some("2")));
    let fields = Value::Object(prompt.reward_fields.unwrap().as_ref().clone());
    assert_eq!(fields, json!({"data_source": "gsm8k", "extra_info.index": 7}));
    assert_eq!(prompt.fields, None);
}

#[test]
fn missing_fields_of_objects_are_errors_that_list_those_that_the_object_has() {
    let spec = json!({"prompt": "{{data_source}}", "answer": "reward_model.answer"});
    let expected =
        "FILE line 1 has no field `reward_model.answer`: `reward_model` has ground_truth";
    assert_eq!(open(ROW, &spec).err().unwrap(), expected);
    let spec = json!({"prompt": "{{extra_info.question}}"});
    let expected = "FILE line 1 has no field `extra_info.question`: `extra_info` has index, rate";
    assert_eq!(open(ROW, &spec).err().unwrap(), expected);
    let spec = json!({"prompt": "{{data_source}}", "rewardFields": ["level"]});
    let expected = "FILE line 1 has no field `level`: it has data_source, extra_info, prompt, \
                    reward_model";
    assert_eq!(open(ROW, &spec).err().unwrap(), expected);
}

#[test]
fn fields_of_rewards_are_limited_and_part_of_the_identity_of_the_data() {
    let spec = |names: &[&str]| json!({"prompt": "{{data_source}}", "rewardFields": names});
    let fingerprint = |row: &str, names: &[&str]| open(row, &spec(names)).unwrap().fingerprint();
    let edited = ROW.replace("\"index\": 7", "\"index\": 8");
    assert_eq!(fingerprint(ROW, &[]), fingerprint(&edited, &[]));
    assert_ne!(fingerprint(ROW, &["extra_info.index"]), fingerprint(&edited, &["extra_info"]));
    assert_ne!(fingerprint(ROW, &["extra_info"]), fingerprint(&edited, &["extra_info"]));
    let long = ROW.replace("gsm8k", &"x".repeat(1 << 20));
    let spec = json!({"prompt": "q", "rewardFields": ["data_source"]});
    let expected = "the fields of FILE line 1 that rewards receive have 1048594 bytes as JSON, \
                    more than 1048576: name fewer in rewardFields of the dataset";
    assert_eq!(open(&long, &spec).err().unwrap(), expected);
}
