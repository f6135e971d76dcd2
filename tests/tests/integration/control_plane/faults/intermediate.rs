//! Intermediate states (Sieve): the operator is killed after its k-th write, for every k of a run
//! without faults, and the next one reaches the same state.

use std::collections::BTreeMap;

use rljob_tests::process::wait_until;
use rljob_tests::proxy::{Effect, Write, faults};
use serde_json::{Value, json};

use super::super::operator::LIMIT;
use super::fixture::{
    Fixture, creates_and_deletes, differences, format_writes, run_parallel, sample,
};

/// A part of the lifecycle, between two idle states.
#[derive(Clone, Copy, Debug)]
enum Part {
    Start,
    Suspend,
    Resume,
    Finish,
    Remove,
}

impl Part {
    const ALL: [Self; 5] = [Self::Start, Self::Suspend, Self::Resume, Self::Finish, Self::Remove];

    fn begin(self, fixture: &mut Fixture) {
        match self {
            Self::Start => fixture.start_operator(),
            Self::Suspend => fixture.patch(&json!({"suspend": true})),
            Self::Resume => fixture.patch(&json!({
                "suspend": false, "inference": {"replicas": 2},
                "trainer": {"resources": {"limits": {"memory": "2Gi"}}},
            })),
            Self::Finish => fixture.pods.run.lock().end = Some("Finished"),
            Self::Remove => fixture.patch(&json!({"ttlSecondsAfterFinished": 0})),
        }
    }

    fn await_state(self, fixture: &Fixture) {
        fixture.wait_for(match self {
            Self::Start | Self::Resume => "Ready",
            Self::Suspend => "Suspended",
            Self::Finish | Self::Remove => "Succeeded",
        });
    }

    fn await_end(self, fixture: &Fixture) -> Vec<Write> {
        self.await_state(fixture);
        fixture.wait_until_idle()
    }
}

/// End state and writes of a part without faults.
struct Reference {
    state: BTreeMap<String, Value>,
    creates_and_deletes: BTreeMap<String, usize>,
    /// Numbers, from 1, of the part's writes that changed an object.
    changes: Vec<usize>,
}

fn reference() -> Vec<Reference> {
    let mut fixture = Fixture::new("undisturbed", &json!({}));
    let (mut references, mut before) = (Vec::new(), 0);
    for part in Part::ALL {
        part.begin(&mut fixture);
        let writes = part.await_end(&fixture);
        let changes = (1..)
            .zip(&writes[before..])
            .filter(|(_, write)| write.changed)
            .map(|(number, _)| number)
            .collect();
        before = writes.len();
        references.push(Reference {
            state: fixture.end_state(),
            creates_and_deletes: creates_and_deletes(&writes, &fixture.uid()),
            changes,
        });
    }
    eprintln!("writes without faults\n{}", format_writes(&fixture.writes()));
    references
}

/// Runs the lifecycle up to a part and kills the operator after the part's k-th write.
fn killed_after(part: usize, k: usize, reference: &Reference) {
    let mut fixture = Fixture::new("killed", &json!({}));
    for earlier in &Part::ALL[..part] {
        earlier.begin(&mut fixture);
        // A throttled status write belongs to the previous part.
        earlier.await_end(&fixture);
    }
    fixture.proxy.inject(faults::nth(k, fixture.own_writes(), Effect::Halt));
    Part::ALL[part].begin(&mut fixture);
    // Short-lived statuses may not be written, so that the k-th write may not happen.
    let halted_or_done = || {
        Ok(fixture.proxy.has_halted()
            || differences(&fixture.end_state(), &reference.state).is_empty())
    };
    wait_until("the k-th write", LIMIT, halted_or_done)
        .unwrap_or_else(|error| panic!("{error:#}: {k} of\n{}", format_writes(&fixture.writes())));
    fixture.kill_operator();
    fixture.proxy.heal();
    fixture.start_operator();
    fixture.wait_for_end_state(
        &reference.state,
        &format!("{:?}, after a crash after write {k}", Part::ALL[part]),
    );
    let writes = fixture.wait_until_idle();
    let context = format!(
        "{:?}, after a crash after write {k}:\n{}",
        Part::ALL[part],
        format_writes(&writes),
    );
    assert_eq!(
        differences(&fixture.end_state(), &reference.state),
        Vec::<String>::new(),
        "{context}"
    );
    assert_eq!(
        creates_and_deletes(&writes, &fixture.uid()),
        reference.creates_and_deletes,
        "{context}",
    );
}

#[test]
fn after_a_crash_after_any_write_the_next_operator_reaches_the_same_state() {
    let reference = reference();
    let cases: Vec<(usize, usize)> = (0..)
        .zip(&reference)
        .flat_map(|(part, reference)| reference.changes.iter().map(move |k| (part, *k)))
        .collect();
    assert!(cases.len() >= 30, "{cases:?}");
    run_parallel(sample(cases, 3), |(part, k)| killed_after(part, k, &reference[part]));
}
