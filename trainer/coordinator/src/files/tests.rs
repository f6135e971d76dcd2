//! What `files` promises, one sentence a test.

use std::collections::BTreeMap;
use std::path::Path;

use rljob_crds::names::JOURNAL_FILE;
use rljob_dashboard::records::Tail;
use rljob_protocol::status::EvaluationMetrics;
use rljob_protocol::trace::StepTrace;
use serde_json::{Value, json};

use super::{EVALUATION_PROMPTS_FILE, EVALUATIONS_FILE, Files, Lines, SAMPLES_FILE, TRACES_FILE};
use crate::data::{Dataset, KeptFields};
use crate::persistence::fence::Fence;
use crate::persistence::journal::{FixedBatch, Journal, Sample, Segment};
use crate::text::TextTokenizer;

fn lines(run: &Path, name: &str) -> Vec<Value> {
    std::fs::read_to_string(run.join(name))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The files of the coordinator of an epoch.
fn open(run: &Path, epoch: u64) -> Files {
    let files = Files::open(&Fence::claim(run, "u", epoch, 7).unwrap()).unwrap();
    files.catch_up(&Journal::open(&run.join("journal.test")).unwrap()).unwrap();
    files
}

#[test]
fn a_superseded_coordinator_writes_to_no_file_of_its_successor() {
    let run = tempfile::tempdir().unwrap();
    let evaluation = |step| EvaluationMetrics { step, ..EvaluationMetrics::default() };
    let steps = || -> Vec<Value> {
        lines(run.path(), EVALUATIONS_FILE).iter().map(|line| line["step"].clone()).collect()
    };
    let old = open(run.path(), 1);
    old.append_evaluation(&evaluation(0));
    // The old process opens its files before its successor claims the run, and again afterwards.
    let stopped = Fence::claim(run.path(), "u", 1, 7).unwrap();
    let new = open(run.path(), 2);
    assert_eq!(steps(), [0]);
    let late = Files::open(&stopped).unwrap();
    for files in [&old, &late] {
        files.append_evaluation(&evaluation(1));
        files.append_evaluation(&evaluation(2));
    }
    assert_eq!(steps(), [0], "a superseded coordinator does not restore its link");
    new.append_evaluation(&evaluation(1));
    assert_eq!(steps(), [0, 1], "the link names the file of the successor");
    let _claimed = Fence::claim(run.path(), "u", 3, 7).unwrap();
    assert_eq!(steps(), [0, 1], "readers find the files while the next coordinator starts");
    drop(open(run.path(), 3));
    assert_eq!(steps(), [0, 1]);
    let files = std::fs::read_dir(run.path()).unwrap().map(|file| file.unwrap().file_name());
    let files: Vec<_> = files.filter_map(|name| name.into_string().ok()).collect();
    assert!(!files.iter().any(|name| name == "evaluations-2-7.jsonl"), "{files:?}");
}

#[test]
fn results_by_prompt_are_replaced_once_they_exceed_their_limit() {
    let run = tempfile::tempdir().unwrap();
    let fence = Fence::claim(run.path(), "u", 1, 7).unwrap();
    let open = || Lines { max_bytes: 20, ..Lines::open(&fence, EVALUATION_PROMPTS_FILE).unwrap() };
    let file = open();
    file.append(0, &[json!({"step": 0, "row": 1}), json!({"step": 0, "row": 2})]);
    file.append(1, &[json!({"step": 1})]);
    file.append(2, &[json!({"step": 2})]);
    open().append(2, &[json!({"step": 2, "row": 9})]);
    let expected = [json!({"step": 1}), json!({"step": 2})];
    assert_eq!(lines(run.path(), EVALUATION_PROMPTS_FILE), expected);
}

#[test]
fn a_reader_gets_every_trace_of_a_file_that_starts_over_and_is_as_long_as_before() {
    let run = tempfile::tempdir().unwrap();
    let fence = Fence::claim(run.path(), "u", 1, 7).unwrap();
    let file = Lines { max_bytes: 20, ..Lines::open(&fence, TRACES_FILE).unwrap() };
    let mut reader = Tail::new(file.path.clone());
    for step in 1..=3 {
        file.append(step, &[StepTrace { step, ..StepTrace::default() }]);
        let traces: Vec<StepTrace> = reader.read().unwrap();
        assert_eq!(traces.iter().map(|trace| trace.step).collect::<Vec<_>>(), [step]);
    }
}

#[test]
fn files_of_an_earlier_release_are_taken_over() {
    let run = tempfile::tempdir().unwrap();
    Journal::open(&run.path().join(JOURNAL_FILE)).unwrap();
    std::fs::write(run.path().join(EVALUATIONS_FILE), "{\"step\":0}\n").unwrap();
    drop(open(run.path(), 1));
    assert_eq!(lines(run.path(), EVALUATIONS_FILE), [json!({"step": 0})]);
    assert!(run.path().join(EVALUATIONS_FILE).is_symlink());
}

#[test]
fn a_step_is_written_once_and_a_torn_line_is_cut_off() {
    let run = tempfile::tempdir().unwrap();
    let evaluation = |step| EvaluationMetrics { step, ..EvaluationMetrics::default() };
    let files = open(run.path(), 1);
    files.append_evaluation(&evaluation(0));
    files.append_evaluation(&evaluation(0));
    drop(files);
    let path = run.path().join(EVALUATIONS_FILE);
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{whole}{{\"step\":5,")).unwrap();
    let files = open(run.path(), 1);
    files.append_evaluation(&evaluation(0));
    files.append_evaluation(&evaluation(5));
    let steps: Vec<Value> =
        lines(run.path(), EVALUATIONS_FILE).iter().map(|line| line["step"].clone()).collect();
    assert_eq!(steps, [0, 5]);
}

/// One question, over and over.
fn questions(folder: &Path) -> Dataset {
    let path = folder.join("train.jsonl");
    std::fs::write(&path, "{\"q\": \"a\", \"n\": \"7\"}\n").unwrap();
    let tokenizer = TextTokenizer::open(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat"),
    )
    .unwrap();
    let spec = serde_json::from_value(
        json!({"path": path, "prompt": "{{q}}", "answer": "n", "format": "Text"}),
    )
    .unwrap();
    Dataset::open_train(&spec, &tokenizer, 1, &KeptFields::None).unwrap()
}

fn sample(position: u64) -> Sample {
    Sample {
        position,
        index: 0,
        row: 0,
        segments: vec![
            Segment::given(0, vec![1], "a".to_owned()),
            Segment {
                turn: 0,
                tokens: vec![3, 2],
                trained: true,
                sampler_logprobs: vec![-0.1, -0.2],
                teacher_logprobs: Vec::new(),
                versions: vec![],
                text: "7".to_owned(),
            },
        ],
        finish_reason: "stop".to_owned(),
        sampling: json!({}),
        reward: 1.0,
        turn_rewards: vec![1.0],
        metadata: serde_json::Map::new(),
        reward_components: BTreeMap::new(),
    }
}

#[test]
fn rollouts_of_a_batch_that_was_fixed_just_before_a_crash_are_written_at_the_next_start() {
    let run = tempfile::tempdir().unwrap();
    let data = questions(run.path());
    let mut journal = Journal::open(&run.path().join(JOURNAL_FILE)).unwrap();
    journal.put_samples(&[sample(0), sample(1), sample(2)]).unwrap();
    let mut fix = |step: u32| {
        let position = u64::from(step) - 1;
        journal
            .fix_batch(&FixedBatch {
                step,
                positions: vec![position],
                next_position: position + 1,
                ..FixedBatch::default()
            })
            .unwrap();
    };
    fix(1);
    fix(2);
    let files = open(run.path(), 1);
    files.append_samples(&journal, &data).unwrap();
    let line = |step: u32| {
        let position = step - 1;
        json!({
            "step": step, "position": position, "prompt": "a", "answer": "7", "completion": "7",
            "reward": 1.0, "finishReason": "stop", "tokens": 2,
        })
    };
    assert_eq!(lines(run.path(), SAMPLES_FILE), [line(1), line(2)]);
    files.append_samples(&journal, &data).unwrap();
    assert_eq!(lines(run.path(), SAMPLES_FILE), [line(1), line(2)]);
}
