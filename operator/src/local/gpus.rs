//! GPUs of this machine and their assignment to the processes of a job: the sets of engines first,
//! then trainers and those of a group, replica by replica.

use std::fs;

use rljob_crds::{EnginePurpose, RLJobSpec};

use super::role::Role;

/// Names of the GPUs that this process may use, in the format of `CUDA_VISIBLE_DEVICES`.
pub fn available() -> Vec<String> {
    if let Some(visible) = std::env::var_os("CUDA_VISIBLE_DEVICES") {
        return visible
            .to_string_lossy()
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty() && *name != "-1")
            .map(ToOwned::to_owned)
            .collect();
    }
    let names = fs::read_dir("/dev")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut numbers: Vec<u32> =
        names.filter_map(|name| name.strip_prefix("nvidia")?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.iter().map(ToString::to_string).collect()
}

/// GPUs that a role requests.
struct Demand {
    role: Role,
    /// Name of one process.
    process: &'static str,
    field: String,
    replicas: usize,
    /// GPUs of each replica.
    each: usize,
}

impl Demand {
    /// Demands of the sets of engines, of trainers, and of the group of `trainer.groups`.
    fn of(spec: &RLJobSpec) -> Vec<Self> {
        let demand = |role, process, field: &str, replicas: i32, each: u32| Self {
            role,
            process,
            field: format!("spec.{field}.resources.limits"),
            replicas: replicas.max(0) as usize,
            each: each as usize,
        };
        let engines = spec.engine_sets().map(|set| {
            let process = match set.purpose {
                EnginePurpose::Rollouts => "engine",
                EnginePurpose::Evaluation => "evaluation engine",
                EnginePurpose::Reward => "reward engine",
            };
            let (role, own) = (Role::Engine(set.purpose), set.engines);
            demand(role, process, &set.field, own.replicas, own.gpus())
        });
        let trainer = &spec.trainer;
        let of_trainer =
            demand(Role::Trainer, "trainer", "trainer", spec.trainers(), trainer.gpus());
        let group = spec.frozen_group().map(|group| {
            let (own, process) = (trainer.of_group(group), "trainer.groups replica");
            demand(Role::Group, process, "trainer.groups[0]", own.replicas, own.gpus())
        });
        engines.chain([of_trainer]).chain(group).collect()
    }

    fn total(&self) -> usize {
        self.replicas.saturating_mul(self.each)
    }

    /// For example `2 engines with 4 GPUs each`.
    fn text(&self) -> String {
        let processes = counted(self.replicas, self.process);
        let each = if self.replicas == 1 { "" } else { " each" };
        format!("{processes} with {}{each}", counted(self.each, "GPU"))
    }
}

/// For example `1 engine`, `2 engines`.
fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// `CUDA_VISIBLE_DEVICES` of process `index` of a role; empty if the role runs on CPUs.
pub fn visible(gpus: &[String], spec: &RLJobSpec, role: Role, index: i32) -> String {
    share(gpus, &Demand::of(spec), role, index)
}

/// GPUs of replica `index` of the role's demand, after those of the demands before it.
fn share(gpus: &[String], demands: &[Demand], role: Role, index: i32) -> String {
    let before = demands.iter().take_while(|demand| demand.role != role);
    let before = before.map(Demand::total).fold(0, usize::saturating_add);
    let each = demands.iter().find(|demand| demand.role == role).map_or(0, |demand| demand.each);
    let first = before.saturating_add(each.saturating_mul(index.max(0) as usize));
    gpus.get(first..first.saturating_add(each)).unwrap_or_default().join(",")
}

/// Problem if the processes of a job request more GPUs than are available.
pub fn shortage(spec: &RLJobSpec, available: usize) -> Option<String> {
    let demands = Demand::of(spec);
    let wanted = demands.iter().map(Demand::total).fold(0, usize::saturating_add);
    let on_gpus = || demands.iter().filter(|demand| demand.total() > 0);
    (wanted > available).then(|| {
        let fields: Vec<&str> = on_gpus().map(|demand| demand.field.as_str()).collect();
        let parts: Vec<String> = on_gpus().map(Demand::text).collect();
        format!(
            "{}: the job needs {} ({}), and this machine has {available}; reduce replicas or \
                GPUs, or remove the GPUs from the limits to run on CPUs",
            fields.join(", "),
            counted(wanted, "GPU"),
            parts.join(", "),
        )
    })
}

/// One line for each role, with the GPUs of its processes; none for a job without GPUs.
pub fn lines(gpus: &[String], spec: &RLJobSpec) -> Vec<String> {
    let demands = Demand::of(spec);
    if demands.iter().all(|demand| demand.total() == 0) {
        return Vec::new();
    }
    let line = |demand: &Demand| {
        if demand.each == 0 {
            return format!("{}s run on CPUs", demand.process);
        }
        let replicas = (0..).take(demand.replicas);
        let shares: Vec<String> = replicas
            .map(|index| format!("[{}]", share(gpus, &demands, demand.role, index)))
            .collect();
        format!("{}s run on GPUs {}", demand.process, shares.join(" "))
    };
    demands.iter().filter(|demand| demand.replicas > 0).map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validate::test_support::with_spec;

    const ENGINE: Role = Role::Engine(EnginePurpose::Rollouts);

    /// Two engines and `trainers` trainers with these GPUs each.
    fn spec(engine: u32, trainers: i32, trainer: u32) -> Box<RLJobSpec> {
        let limits = |gpus: u32| json!({"limits": {"nvidia.com/gpu": gpus}});
        let patch = json!({
            "inference": {"sglang": {}, "resources": limits(engine)},
            "trainer": {
                "replicas": trainers, "processesPerReplica": null, "resources": limits(trainer),
            },
        });
        Box::new(with_spec(&patch).spec.clone())
    }

    fn names(count: usize) -> Vec<String> {
        (4..).take(count).map(|number: usize| number.to_string()).collect()
    }

    #[test]
    fn too_few_gpus_are_a_problem_that_counts_both_roles() {
        let hint = "reduce replicas or GPUs, or remove the GPUs from the limits to run on CPUs";
        let (engines, trainers) =
            ("spec.inference.resources.limits", "spec.trainer.resources.limits");
        for (spec, available, expected) in [
            (spec(0, 1, 0), 0, None),
            (spec(2, 1, 0), 4, None),
            (
                spec(2, 1, 0),
                3,
                Some(format!(
                    "{engines}: the job needs 4 GPUs (2 engines with 2 GPUs each), and this \
                     machine has 3; {hint}"
                )),
            ),
            (
                spec(0, 1, 1),
                0,
                Some(format!(
                    "{trainers}: the job needs 1 GPU (1 trainer with 1 GPU), and this machine \
                     has 0; {hint}"
                )),
            ),
            (spec(1, 2, 4), 10, None),
            (
                spec(1, 2, 4),
                8,
                Some(format!(
                    "{engines}, {trainers}: the job needs 10 GPUs (2 engines with 1 GPU each, 2 \
                     trainers with 4 GPUs each), and this machine has 8; {hint}"
                )),
            ),
        ] {
            assert_eq!(shortage(&spec, available), expected);
        }
    }

    #[test]
    fn engines_and_then_trainers_have_separate_gpus() {
        for (spec, engines, trainers) in [
            (spec(0, 2, 0), ["", ""], ["", ""]),
            (spec(2, 2, 0), ["4,5", "6,7"], ["", ""]),
            (spec(0, 2, 2), ["", ""], ["4,5", "6,7"]),
            (spec(1, 2, 2), ["4", "5"], ["6,7", "8,9"]),
        ] {
            let gpus = names(6);
            let shares = (
                [0, 1].map(|index| visible(&gpus, &spec, ENGINE, index)),
                [0, 1].map(|index| visible(&gpus, &spec, Role::Trainer, index)),
            );
            assert_eq!(shares, (engines.map(Into::into), trainers.map(Into::into)));
        }
    }

    #[test]
    fn other_engines_have_the_gpus_between_those_of_engines_and_trainers() {
        let limits = |gpus: u32| json!({"limits": {"nvidia.com/gpu": gpus}});
        let spec = &with_spec(&json!({
            "dataset": {"evaluation": {
                "path": "/data/test.jsonl", "prompt": "{{ question }}", "answer": "answer",
            }},
            "inference": {"sglang": {}, "replicas": 1, "resources": limits(2)},
            "evaluation": {"engines": {"replicas": 2, "resources": limits(1)}},
            "rewards": [{"name": "scored", "model": {
                "path": "/judge", "engines": {"resources": limits(1)}, "text": "{{completion}}",
            }}],
            "trainer": {"replicas": 1, "processesPerReplica": null, "resources": limits(2)},
        }))
        .spec;
        let expected = [
            "engines run on GPUs [4,5]",
            "evaluation engines run on GPUs [6] [7]",
            "reward engines run on GPUs [8]",
            "trainers run on GPUs [9,10]",
        ];
        assert_eq!(lines(&names(7), spec), expected);
        assert_eq!(visible(&names(7), spec, Role::Engine(EnginePurpose::Reward), 0), "8");
        let problem = shortage(spec, 5).unwrap();
        assert!(problem.contains("2 evaluation engines with 1 GPU each"), "{problem}");
        assert!(problem.contains("spec.rewards[0].model.engines.resources.limits"), "{problem}");
    }

    #[test]
    fn a_group_has_the_gpus_after_those_of_trainers() {
        let limits = |gpus: u32| json!({"limits": {"nvidia.com/gpu": gpus}});
        let spec = with_spec(&json!({
            "algorithm": {"grpo": {"klCoefficient": 0.1}},
            "inference": {"sglang": {}, "replicas": 1, "resources": limits(1)},
            "trainer": {
                "processesPerReplica": null, "resources": limits(2),
                "groups": [{
                    "name": "frozen", "roles": ["Reference"], "replicas": 2, "resources": limits(1),
                }],
            },
        }));
        let gpus = names(5);
        assert_eq!(visible(&gpus, &spec.spec, Role::Trainer, 0), "5,6");
        let of_group = |index| visible(&gpus, &spec.spec, Role::Group, index);
        assert_eq!([0, 1].map(of_group), ["7", "8"]);
        let expected = [
            "engines run on GPUs [4]",
            "trainers run on GPUs [5,6]",
            "trainer.groups replicas run on GPUs [7] [8]",
        ];
        assert_eq!(lines(&gpus, &spec.spec), expected);
        let shortage = shortage(&spec.spec, 4).unwrap();
        assert!(
            shortage.contains("5 GPUs")
                && shortage.contains("2 trainer.groups replicas with 1 GPU each")
        );
    }

    #[test]
    fn a_line_of_each_role_names_its_gpus() {
        for (spec, expected) in [
            (spec(0, 1, 0), vec![]),
            (spec(2, 1, 0), vec!["engines run on GPUs [4,5] [6,7]", "trainers run on CPUs"]),
            (spec(0, 1, 1), vec!["engines run on CPUs", "trainers run on GPUs [4]"]),
            (
                spec(1, 2, 2),
                vec!["engines run on GPUs [4] [5]", "trainers run on GPUs [6,7] [8,9]"],
            ),
        ] {
            assert_eq!(lines(&names(6), &spec), expected);
        }
    }
}
