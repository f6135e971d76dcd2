//! `rljob render`: prints the objects that the operator would create for a job, as YAML, or the
//! plan of its steps. Tokens are placeholders.

use std::path::PathBuf;

use anyhow::Context;
use rljob_crds::{RLJob, dataflow};

use super::plan::{self, JobPlan};
use super::status::Output;
use crate::children::children;
use crate::decide::{Wanted, WantedRoles};
use crate::desired::meta::OPERATOR_NAMESPACE;
use crate::desired::{Labels, Pinned, Scrapers, Settings, Tokens, build, cidr, labels};
use crate::gang::GangSchedulers;
use crate::install::DEFAULT_IMAGE;
use crate::local::set::Set;
use crate::pod_group::build_pod_group;
use crate::queue::build::build_workload;
use crate::queue::placement::{place, requested};
use crate::queue::workload_name;
use crate::validate::{Policy, ValidatedJob, validate};

/// Prints the objects that the operator would create for a job.
#[derive(clap::Args, Debug)]
pub struct RenderArgs {
    /// Job file, or `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Namespace of jobs without a namespace.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// Image of roles without an image; the operator uses its own.
    #[arg(long, default_value = DEFAULT_IMAGE)]
    pub image: String,
    /// As for the operator: Secrets with credentials of registries (the chart's
    /// `jobs.imagePullSecrets`), separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub image_pull_secrets: Vec<String>,
    /// As for `rljob run`: sets a field before the objects are rendered. Repeatable.
    #[arg(long, value_name = "[NAME:]PATH=VALUE")]
    pub set: Vec<String>,
    /// Namespace of the operator, whose pods the NetworkPolicies admit.
    #[arg(long, value_name = "NAMESPACE", default_value = OPERATOR_NAMESPACE)]
    pub operator_namespace: String,
    /// As for the operator: blocks of addresses that pods may reach outside of their job (the
    /// chart's `jobs.egressCIDRs`), separated by commas. Default: all.
    #[arg(long, value_name = "CIDRS", value_delimiter = ',', value_parser = cidr)]
    pub egress_cidrs: Vec<String>,
    /// As for the operator: labels of namespaces whose pods may scrape metrics (the chart's
    /// `jobs.scrapers`), as `key=value`. Default: no pod may.
    #[arg(long, value_name = "LABELS", value_parser = labels)]
    pub metrics_namespace_selector: Option<Labels>,
    /// As for the operator: labels of the pods in these namespaces that may. Default: all.
    #[arg(
        long,
        value_name = "LABELS",
        value_parser = labels,
        requires = "metrics_namespace_selector"
    )]
    pub metrics_pod_selector: Option<Labels>,
    /// As for the operator: a job in a queue of Kueue has a Workload, here without the priority of
    /// a class of the cluster, and pods of roles with an annotation of a topology wait behind its
    /// scheduling gate.
    #[arg(long)]
    pub kueue: bool,
    /// Print the plan of a step instead: the calls of models, rewards and servers in their order,
    /// with their workers, inputs and outputs. Paths may be relative, as for `rljob run`.
    #[arg(long)]
    pub plan: bool,
    /// With `--plan`: format of the output.
    #[arg(short, long, value_enum, default_value_t, requires = "plan")]
    pub output: Output,
}

impl RenderArgs {
    fn settings(&self) -> Settings {
        let pods = self.metrics_pod_selector.clone().unwrap_or_default();
        let namespace = self.metrics_namespace_selector.clone();
        Settings {
            image: self.image.clone(),
            image_pull_secrets: self.image_pull_secrets.clone(),
            namespace: self.operator_namespace.clone(),
            egress_cidrs: self.egress_cidrs.clone(),
            scrapers: namespace.map(|namespace| Scrapers { namespace, pods }),
            kueue: self.kueue,
            gang_schedulers: GangSchedulers::ALL,
        }
    }

    /// A job of the file with a namespace, validated.
    fn validated(&self, job: &mut RLJob, policy: Policy) -> anyhow::Result<ValidatedJob> {
        job.metadata.namespace.get_or_insert_with(|| self.namespace.clone());
        let name = job.metadata.name.clone().unwrap_or_default();
        validate(job, policy)
            .with_context(|| format!("cannot render rljob {name} of {}", self.file.display()))
    }
}

/// Renders all jobs of the file.
///
/// # Errors
/// A job is invalid, or has paths that pods do not have.
pub fn render(arguments: &RenderArgs) -> anyhow::Result<String> {
    let settings = arguments.settings();
    let sets = arguments.set.iter().map(|text| text.parse()).collect::<Result<Vec<Set>, _>>()?;
    if arguments.plan {
        return plans(arguments, &sets);
    }
    let mut text = String::new();
    for mut job in super::read_jobs(&arguments.file, &sets)? {
        let policy = Policy::of_operator(true).with_gangs(settings.gang_schedulers);
        let mut job = arguments.validated(&mut job, policy)?;
        let pod_group = build_pod_group(&job, &settings, false).filter(|_| !job.spec.suspend);
        let workload = if arguments.kueue { build_workload(&job, &settings, None) } else { None };
        if workload.is_some() {
            let placements = requested(&workload_name(&job), &job.spec);
            place(&mut job.spec, &placements);
        }
        let roles = if job.spec.suspend { WantedRoles::Nothing } else { WantedRoles::Everything };
        let verifiers = job.spec.verifiers.as_ref().map_or(0, |pods| pods.min_replicas);
        let resources = build(
            &job,
            Wanted { roles, verifiers },
            &settings,
            &Tokens::placeholders(),
            &Pinned::default(),
        );
        let children = pod_group.into_iter().chain(children(&resources));
        for object in workload.into_iter().chain(children.map(|child| child.object)) {
            text.push_str("---\n");
            text.push_str(&serde_yaml::to_string(&object)?);
        }
    }
    Ok(text)
}

/// Plans of the steps of all jobs of the file.
fn plans(arguments: &RenderArgs, sets: &[Set]) -> anyhow::Result<String> {
    let mut plans = Vec::new();
    for mut job in super::read_jobs(&arguments.file, sets)? {
        let job = arguments.validated(&mut job, Policy::LOCAL)?;
        let name = format!("{}/{}", job.namespace, job.name);
        let plan =
            dataflow::plan(&job.spec).with_context(|| format!("rljob {name} has no plan"))?;
        plans.push(JobPlan::new(name, plan));
    }
    plan::print(&plans, arguments.output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::test_support::MINIMAL;
    use clap::Parser;
    use std::path::Path;

    #[derive(Parser, Debug)]
    struct Arguments {
        #[command(flatten)]
        render: RenderArgs,
    }

    #[test]
    fn a_plan_lists_the_calls_of_a_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.yaml");
        std::fs::write(&path, MINIMAL).unwrap();
        let path = path.display().to_string();
        let of = |more: &[&str]| {
            let words = ["render", "--plan", "--file", &path].into_iter();
            let words = words.chain(more.iter().copied());
            super::render(&Arguments::try_parse_from(words).unwrap().render).unwrap()
        };
        let changes = [
            "--set=spec.algorithm={ppo: {klCoefficient: 0.1}}",
            "--set=spec.rollout.maxStaleness=1",
            "--set=spec.rewards=[{name: correct, math: {}}, \
                {name: check, command: {command: [c]}}]",
            "--set=spec.training.minibatches=2",
        ];
        let expected = include_str!("testdata/plan.txt");
        assert_eq!(of(&changes), expected.trim_end());
        let json: serde_json::Value = serde_json::from_str(&of(&["--output=json"])).unwrap();
        let call = &json[0]["stages"][1]["lanes"][0]["calls"][0];
        let expected = serde_json::json!({
            "name": "generate", "kind": "generate", "model": "policy", "workers": "engines",
            "phase": "rollouts", "inputs": ["prompts", "engineWeights"],
            "outputs": ["completions", "behaviorLogprobs"],
        });
        assert_eq!((&json[0]["job"], call), (&"lab/sums".into(), &expected));
        let form = serde_json::json!({"name": "engineWeights", "form": "tensors, compute type"});
        assert!(json[0]["data"].as_array().unwrap().contains(&form), "{json}");
        let words = ["render", "--file", &path, "--output=json"];
        let error = Arguments::try_parse_from(words).unwrap_err().to_string();
        assert!(error.contains("--plan"), "{error}");
    }

    #[test]
    fn the_documents_have_the_plan_of_the_sample_of_ppo() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let sample = root.join("manifests/samples/algorithms/ppo.yaml").display().to_string();
        let words = ["render", "--plan", "--file", &sample];
        let plan = super::render(&Arguments::try_parse_from(words).unwrap().render).unwrap();
        let page = std::fs::read_to_string(root.join("docs/algorithms.md")).unwrap();
        assert!(page.contains(&format!("```text\n{}\n```", plan.trim_end())), "{plan}");
    }

    #[test]
    fn every_sample_has_a_plan_that_trains_or_estimates() {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/samples");
        let mut plans = 0;
        for folder in [samples.join("algorithms"), samples] {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_none_or(|extension| extension != "yaml") {
                    continue;
                }
                let path = path.display().to_string();
                let words = ["render", "--plan", "--output=json", "--file", &path];
                let text = super::render(&Arguments::try_parse_from(words).unwrap().render);
                let jobs: Vec<serde_json::Value> = serde_json::from_str(&text.unwrap()).unwrap();
                for job in &jobs {
                    let last = job["stages"].as_array().unwrap().last().unwrap();
                    let made = &last["lanes"][0]["calls"][0]["outputs"][0];
                    let results = ["newPolicyWeights", "estimates"];
                    assert!(results.iter().any(|name| made == name), "{path}: {made}");
                }
                plans += jobs.len();
            }
        }
        assert!(plans > 40, "{plans}");
    }

    #[test]
    fn fields_the_operators_namespace_and_scrapers_can_be_set() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.yaml");
        std::fs::write(&path, MINIMAL).unwrap();
        let path = path.display().to_string();
        let of = |more: &[&str]| {
            let words = ["render", "--file", &path].into_iter().chain(more.iter().copied());
            super::render(&Arguments::try_parse_from(words).unwrap().render).unwrap()
        };
        let plain = of(&[]);
        assert!(plain.contains("kubernetes.io/metadata.name: rljob-system"), "{plain}");
        assert!(!plain.contains("team: monitoring"), "{plain}");
        let text = of(&[
            "--set=spec.inference.replicas=7",
            "--operator-namespace=ops",
            "--metrics-namespace-selector=team=monitoring",
            "--metrics-pod-selector=app=prometheus",
            "--egress-cidrs=192.0.2.0/24,fd00::/8",
            "--set=spec.rewards=[{name: judge, http: {url: 'http://judge.lab/score'}}]",
        ]);
        let parts = ["replicas: 7", "metadata.name: ops", "team: monitoring", "app: prometheus"];
        for part in parts.into_iter().chain(["cidr: 192.0.2.0/24", "cidr: fd00::/8"]) {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("rljob-system"), "{text}");
        let queue = "metadata: {labels: {kueue.x-k8s.io/queue-name: q}, ";
        let queued = MINIMAL.replacen("metadata: {", queue, 1);
        std::fs::write(&path, queued).unwrap();
        let kinds = |text: &str| text.matches("\nkind: Workload\n").count();
        assert_eq!((kinds(&of(&[])), kinds(&of(&["--kueue"]))), (0, 1), "{}", of(&["--kueue"]));
        let gates = |more: &[&str]| of(more).matches("name: kueue.x-k8s.io/topology").count();
        let topology = "--set=spec.trainer.template={metadata: {annotations: \
            {kueue.x-k8s.io/podset-required-topology: rack}}}";
        let numbers = (gates(&["--kueue"]), gates(&[topology]), gates(&["--kueue", topology]));
        assert_eq!(numbers, (0, 0, 1));
        let gang = of(&["--set=spec.scheduling.gang={native: {}}"]);
        let parts = ["kind: PodGroup\n", "minCount: 3\n", "schedulingGroup:\n"];
        let counts = parts.map(|part| gang.matches(part).count());
        assert_eq!(counts, [1, 1, 2], "{gang}");
    }
}
