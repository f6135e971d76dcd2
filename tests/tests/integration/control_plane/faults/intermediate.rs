//! Intermediate states: the operator is killed after its k-th write, for every k of the undisturbed
//! run, and the next one makes of it what the first would have.

use std::collections::BTreeMap;

use rljob_tests::process::wait_until;
use rljob_tests::proxy::{Effect, Write, faults};
use serde_json::{Value, json};

use super::super::operator::LIMIT;
use super::stage::{Stage, differences, in_lanes, listed, made_and_removed};

/// A part of a job's life, from one state in which nothing happens to the next.
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

    fn begin(self, stage: &mut Stage) {
        match self {
            Self::Start => stage.start_operator(),
            Self::Suspend => stage.patch(&json!({"suspend": true})),
            Self::Resume => stage.patch(&json!({"suspend": false, "inference": {"replicas": 2}, "trainer": {"resources": {"limits": {"memory": "2Gi"}}}})),
            Self::Finish => stage.play.run.lock().unwrap().end = Some("Finished"),
            Self::Remove => stage.patch(&json!({"ttlSecondsAfterFinished": 0})),
        }
    }

    fn await_state(self, stage: &Stage) {
        stage.wait_for(match self {
            Self::Start | Self::Resume => "Ready",
            Self::Suspend => "Suspended",
            Self::Finish | Self::Remove => "Succeeded",
        });
    }

    fn await_end(self, stage: &Stage) -> Vec<Write> {
        self.await_state(stage);
        stage.rest()
    }
}

/// What an undisturbed life leaves at the end of a part, and what it wrote up to there.
struct Reference {
    state: BTreeMap<String, Value>,
    made_and_removed: BTreeMap<String, usize>,
    /// The writes of this part, from 1, that changed something.
    changes: Vec<usize>,
}

fn reference() -> Vec<Reference> {
    let mut stage = Stage::set("undisturbed", &json!({}));
    let (mut references, mut before) = (Vec::new(), 0);
    for part in Part::ALL {
        part.begin(&mut stage);
        let writes = part.await_end(&stage);
        let changes = (1..)
            .zip(&writes[before..])
            .filter(|(_, write)| write.changed)
            .map(|(number, _)| number)
            .collect();
        before = writes.len();
        references.push(Reference {
            state: stage.end_state(),
            made_and_removed: made_and_removed(&writes, &stage.uid()),
            changes,
        });
    }
    eprintln!("an undisturbed life writes\n{}", listed(&stage.writes()));
    references
}

/// A life up to the end of a part, in which the operator is killed after the part's k-th write.
fn killed_after(struck: usize, k: usize, reference: &Reference) {
    let mut stage = Stage::set("killed", &json!({}));
    for part in &Part::ALL[..struck] {
        part.begin(&mut stage);
        // A status that only counts may be held back: it belongs to the part before.
        part.await_end(&stage);
    }
    stage.proxy.inject(faults::nth(k, stage.own_writes(), Effect::Halt));
    Part::ALL[struck].begin(&mut stage);
    // Statuses of short states are written or not, so that the last of the undisturbed run's writes
    // may not come.
    let struck_or_through = || {
        Ok(stage.proxy.has_halted() || differences(&stage.end_state(), &reference.state).is_empty())
    };
    wait_until("the write to crash after", LIMIT, struck_or_through)
        .unwrap_or_else(|error| panic!("{error:#}: {k} of\n{}", listed(&stage.writes())));
    stage.kill_operator();
    stage.proxy.heal();
    stage.start_operator();
    stage.wait_to_be(
        &reference.state,
        &format!("{:?}, after a crash after write {k}", Part::ALL[struck]),
    );
    let writes = stage.rest();
    let context =
        format!("{:?}, after a crash after write {k}:\n{}", Part::ALL[struck], listed(&writes));
    assert_eq!(
        differences(&stage.end_state(), &reference.state),
        Vec::<String>::new(),
        "{context}"
    );
    assert_eq!(made_and_removed(&writes, &stage.uid()), reference.made_and_removed, "{context}");
}

#[test]
fn whatever_write_the_operator_is_killed_after_the_next_one_goes_on_to_the_same_state() {
    let reference = reference();
    let cases: Vec<(usize, usize)> = (0..)
        .zip(&reference)
        .flat_map(|(part, reference)| reference.changes.iter().map(move |k| (part, *k)))
        .collect();
    assert!(cases.len() >= 30, "{cases:?}");
    in_lanes(cases, |(part, k)| killed_after(part, k, &reference[part]));
}
